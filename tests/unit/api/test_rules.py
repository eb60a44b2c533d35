"""Contradictions: each rule has a job that breaks it, and says what to write instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from drumroll.api.loading import parse_jobs
from drumroll.api.spec import RLJob, RLJobSpec, Stream
from drumroll.api.tree import placed_rules

VIOLATIONS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "violations.yaml").read_text())


@pytest.mark.parametrize("case", VIOLATIONS, ids=[case["rule"] for case in VIOLATIONS])
def test_a_job_that_breaks_a_rule_is_refused_with_its_sentence(
    case: dict[str, Any], job_text: Callable[..., str]
) -> None:
    loaded = parse_jobs(job_text(case["changes"]), "job.yaml")
    rule = next(rule for _, rule in placed_rules() if rule.id == case["rule"])
    assert [problem.message.split(": write")[0] for problem in loaded.problems] == [rule.message.split(": write")[0]]
    assert loaded.problems[0].field.endswith(rule.field)


def test_every_rule_that_a_server_knows_has_such_a_job() -> None:
    known = {rule.id for _, rule in placed_rules() if rule.cel is not None}
    assert {case["rule"] for case in VIOLATIONS} == known


def test_messages_say_what_to_write() -> None:
    for _, rule in placed_rules():
        if rule.explain is None:
            assert ": write " in rule.message or ": leave " in rule.message, rule.id


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("a(", "unterminated subpattern"), ("#### .+", "put parentheses around it")],
)
def test_a_pattern_that_cannot_find_an_answer_is_refused(
    pattern: str, reason: str, job_text: Callable[..., str]
) -> None:
    loaded = parse_jobs(job_text({"spec.reward": {"type": "exact", "pattern": pattern}}), "job.yaml")
    assert [problem.field for problem in loaded.problems] == ["spec.reward.pattern"]
    assert reason in loaded.problems[0].message


def test_a_variable_that_is_set_twice_is_named(job_text: Callable[..., str]) -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}, {"name": "A", "value": "2"}]
    loaded = parse_jobs(job_text({"spec.env": twice}), "job.yaml")
    assert [problem.message for problem in loaded.problems] == ["A is set more than once: write each variable once"]


def test_case_n6_a_group_of_one_is_refused(job_text: Callable[..., str]) -> None:
    (problem,) = parse_jobs(job_text({"spec.algorithm.groupSize": 1}), "job.yaml").problems
    assert problem.field == "spec.algorithm.groupSize"
    assert problem.value == "1"
    assert problem.message == "groupSize 1 has no group to compare with: write 2 or more"


def test_a_store_that_is_too_small_is_told_the_size_that_would_do(job_text: Callable[..., str]) -> None:
    (problem,) = parse_jobs(job_text({"spec.stream.embedded.maxBytes": "1Mi"}), "job.yaml").problems
    assert "write 32Mi or more" in problem.message
    assert not parse_jobs(job_text({"spec.stream.embedded.maxBytes": "32Mi"}), "job.yaml").problems


@pytest.mark.parametrize("url", ["redis://store", "redis://store:6379/3", "redis://u:p@store:6379", "rediss://[::1]"])
def test_an_address_that_a_part_of_would_be_ignored_is_refused(url: str, job_text: Callable[..., str]) -> None:
    """A store's address is host and port; another database than 0 would be left aside in silence."""
    (problem,) = parse_jobs(job_text({"spec.stream": {"url": url}}), "job.yaml").problems
    assert problem.message.startswith("not the address of a Redis or Valkey: write redis://host:port")
    assert not parse_jobs(job_text({"spec.stream": {"url": "rediss://[::1]:6379/"}}), "job.yaml").problems


def test_models_made_in_python_keep_the_same_rules() -> None:
    with pytest.raises(ValidationError, match="an embedded store makes its own users"):
        Stream(secret_ref="users")


def test_defaults_that_depend_on_other_fields(job_text: Callable[..., str]) -> None:
    def spec(changes: dict[str, Any]) -> RLJobSpec:
        return RLJob.model_validate(yaml.safe_load(job_text(changes))).spec.resolved()

    assert (spec({}).epochs, spec({}).steps) == (1, None)
    assert (spec({"spec.steps": 7}).epochs, spec({"spec.epochs": 4}).epochs) == (None, 4)
    targets = [spec({"spec.maxPolicyLag": bound}).target_policy_lag for bound in range(7)]
    assert targets == [0, 1, 1, 1, 2, 2, 3]
    assert spec({"spec.maxPolicyLag": 4, "spec.targetPolicyLag": 4}).target_policy_lag == 4
