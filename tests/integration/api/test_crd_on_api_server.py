"""The CRD on a real API server: accepted, same defaults and same refusals as offline, columns, scaling."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumroll.api.editing import edited
from drumroll.api.loading import load_jobs, parse_jobs
from drumroll.api.reference import EXAMPLE
from drumroll.api.rules import IMMUTABLE
from drumroll.api.tree import placed_rules

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit" / "api"
VIOLATIONS: list[dict[str, Any]] = yaml.safe_load((UNIT / "violations.yaml").read_text())
POOLS: dict[str, list[Any]] = yaml.safe_load((UNIT / "pools.yaml").read_text())
EXAMPLES = {
    "documented": EXAMPLE,
    **{
        path.name: path.read_text()
        for path in (
            *(ROOT / "examples").rglob("*.y*ml"),
            UNIT / "cases/K6_quantities.yaml",
            UNIT / "cases/S6_env.yaml",
        )
        if "kind: RLJob" in path.read_text()
    },
}
MINIMAL = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"path": "models/tiny"},
        "data": {"train": {"path": "data/train.jsonl"}},
        "reward": {"type": "math"},
    },
}


SERVERS_OWN_WORDS = re.compile(r'^[A-Z][a-z ]+: (("([^"\\]|\\.)*"|[-0-9.e]+|true|false): )?')


def offline(job: dict[str, Any]) -> list[str]:
    return sorted(problem.message for problem in parse_jobs(json.dumps(job), "job.yaml").problems)


def refusals(answer: dict[str, Any]) -> list[str]:
    """Sentences of an error status, without the server's own words before them; empty for success."""
    if answer["kind"] != "Status":
        return []
    causes = answer["details"].get("causes", [{"message": answer["message"]}])
    return sorted(SERVERS_OWN_WORDS.sub("", cause["message"]) for cause in causes)


def paths(data: Any, prefix: str = "") -> set[str]:
    if isinstance(data, dict) and data:
        return {path for key, value in data.items() for path in paths(value, f"{prefix}.{key}")}
    if isinstance(data, list):
        return {path for index, value in enumerate(data) for path in paths(value, f"{prefix}[{index}]")} or {prefix}
    return {prefix}


def test_the_crd_is_established_and_structural(api_server: Any) -> None:
    answer = api_server.kubectl("get", "crd", "rljobs.drumroll.dev", "-o", "json")
    conditions = {entry["type"]: entry["status"] for entry in json.loads(answer.stdout)["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gets_the_same_defaults_as_offline(name: str, api_server: Any) -> None:
    applied = api_server.kubectl("apply", "--validate=strict", "-f", "-", text=EXAMPLES[name])
    assert applied.returncode == 0, applied.stderr
    for job in load_jobs(EXAMPLES[name]):
        answer = api_server.kubectl("get", "rlj", job.metadata.name, "-o", "json")
        served = json.loads(answer.stdout)
        assert paths(served["spec"]) == paths(job.to_wire()["spec"])
        assert load_jobs(yaml.safe_dump(served))[0].spec == job.spec


@pytest.mark.parametrize("case", VIOLATIONS, ids=[case["rule"] for case in VIOLATIONS])
def test_a_broken_rule_is_refused_with_the_same_sentence(case: dict[str, Any], api_server: Any) -> None:
    job = edited(MINIMAL, case["changes"])
    assert refusals(api_server.create(job)) == offline(job)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.model.path", "models/other"),
        ("spec.data.eval", {"path": "data/eval.jsonl"}),
        ("spec.data.maxPromptTokens", 5),
        ("spec.seed", 1),
        ("spec.maxPolicyLag", 3),
        ("spec.algorithm.groupSize", 4),
        ("spec.algorithm.promptsPerStep", 4),
    ],
)
def test_what_cannot_change_is_refused(path: str, value: Any, api_server: Any) -> None:
    job = edited(MINIMAL, {"metadata.name": "fixed"})
    api_server.create(job, dry_run=False)
    change = edited({}, {path: value})
    answer = api_server.request("PATCH", "/fixed", change, "application/merge-patch+json")
    assert refusals(answer) == [next(text for fixed, text in IMMUTABLE.items() if path.startswith(fixed))]


def test_what_may_change_changes(api_server: Any) -> None:
    api_server.create(edited(MINIMAL, {"metadata.name": "live"}), dry_run=False)
    change = {"spec": {"steps": 9, "targetPolicyLag": 0, "rollout": {"replicas": 3}}}
    assert refusals(api_server.request("PATCH", "/live", change, "application/merge-patch+json")) == []


def test_unknown_fields_are_refused(api_server: Any) -> None:
    text = yaml.safe_dump(edited(MINIMAL, {"spec.algorithm.group_size": 4}))
    applied = api_server.kubectl("apply", "--validate=strict", "-f", "-", text=text)
    assert applied.returncode != 0
    assert 'unknown field "spec.algorithm.group_size"' in applied.stderr


def test_variables_that_are_set_twice_are_refused(api_server: Any) -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    (message,) = refusals(api_server.create(edited(MINIMAL, {"spec.env": twice})))
    assert '"name":"A"' in message


def test_kubectl_scales_within_the_bounds(api_server: Any) -> None:
    changes = {"metadata.name": "scaled", "spec.rollout": {"replicas": 2, "maxReplicas": 4}}
    api_server.create(edited(MINIMAL, changes), dry_run=False)
    assert api_server.kubectl("scale", "rlj/scaled", "--replicas=4").returncode == 0
    answer = api_server.kubectl("get", "rlj", "scaled", "-o", "jsonpath={.spec.rollout.replicas}")
    assert answer.stdout == "4"
    refused = api_server.kubectl("scale", "rlj/scaled", "--replicas=5")
    assert refused.returncode != 0
    assert "replicas is above maxReplicas" in refused.stderr


def test_columns_show_the_status(api_server: Any) -> None:
    api_server.create(edited(MINIMAL, {"metadata.name": "shown"}), dry_run=False)
    status = {
        "phase": "Running",
        "step": 17,
        "steps": 500,
        "version": 18,
        "policyLag": {"min": 0, "mean": 1.5, "max": 4},
        "rollout": {"replicas": 4, "ready": 3, "summary": "3/4", "selector": "drumroll.dev/job=shown"},
        "message": "training",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "AllReady",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    answer = api_server.request("PATCH", "/shown/status", {"status": status}, "application/merge-patch+json")
    assert answer["kind"] == "RLJob", answer
    head, row = api_server.kubectl("get", "rlj", "shown").stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "VERSION", "LAG", "ROLLOUT", "AGE"]
    assert row.split()[:6] == ["shown", "Running", "17", "18", "1.5", "3/4"]
    wide = api_server.kubectl("get", "rlj", "shown", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[7:] == ["STEPS", "REPLICAS", "MAX-LAG", "MODEL", "MESSAGE"]
    scale = json.loads(api_server.kubectl("get", "rlj", "shown", "--subresource=scale", "-o", "json").stdout)
    assert scale["status"] == {"replicas": 4, "selector": "drumroll.dev/job=shown"}


SENTENCES = {rule.message.partition(": write")[0] for _, rule in placed_rules() if rule.cel is not None}


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(st.lists(st.sampled_from(sorted(POOLS)), max_size=6, unique=True))
    return {field: draw(st.sampled_from(POOLS[field])) for field in fields}


@given(changes())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_server_and_offline_checks_agree(api_server: Any, change: dict[str, Any]) -> None:
    job = edited(MINIMAL, change)
    answer, told = api_server.create(job), offline(job)
    if all(message.partition(": write")[0] in SENTENCES for message in told):
        assert refusals(answer) == told
    else:  # A field is wrong by itself: the server says so in words of its own, and checks no rule then.
        assert refusals(answer)
    if not told:
        (entry,) = parse_jobs(json.dumps(job), "job.yaml").jobs
        assert paths(answer["spec"]) == paths(entry.job.to_wire()["spec"])
