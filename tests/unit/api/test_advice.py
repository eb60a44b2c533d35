"""Warnings: allowed, but probably not meant."""

from collections.abc import Callable
from typing import Any

import pytest

from drumroll.api.advice import looks_like_secret
from drumroll.api.editing import edited
from drumroll.api.loading import parse_jobs
from drumroll.api.pods import EnvVar


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("TRACKER_API_KEY", "x"),
        ("password", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("OTHER", "hf_abcdefgh"),
        ("OTHER", "-----BEGIN PRIVATE KEY-----"),
        ("PROXY", "http://user:pass@proxy:8080"),
    ],
)
def test_secrets_are_recognised_by_name_or_by_value(name: str, value: str) -> None:
    assert looks_like_secret(EnvVar(name=name, value=value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "5"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("HF_TOKEN_PATH", "/run/token"),
        ("HF_TOKEN", ""),
        ("PROXY", "http://proxy:8080"),
        ("MONKEY", "x"),
    ],
)
def test_ordinary_variables_are_not(name: str, value: str) -> None:
    assert not looks_like_secret(EnvVar(name=name, value=value))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec.steps": 10, "spec.algorithm.warmupSteps": 10}, "spec.algorithm.warmupSteps"),
        ({"spec.data.eval": {"path": "e", "samplesPerPrompt": 4}}, "spec.data.eval.samplesPerPrompt"),
        ({"spec.model.trustRemoteCode": True}, "spec.model.trustRemoteCode"),
        ({"spec.trainer.env": [{"name": "WANDB_API_KEY", "value": "x"}]}, "spec.trainer.env[0].value"),
    ],
)
def test_what_is_probably_not_meant_is_said(changes: dict[str, Any], field: str, job_text: Callable[..., str]) -> None:
    loaded = parse_jobs(job_text(changes), "job.yaml")
    assert not loaded.problems
    assert [warning.field for warning in loaded.warnings] == [field]
    assert loaded.warnings[0].line is not None


def test_edits_leave_the_original_alone() -> None:
    data = {"a": {"b": 1}, "c": 2}
    assert edited(data, {"a.b": None, "a.d.e": 3, "c": 4}) == {"a": {"d": {"e": 3}}, "c": 4}
    assert data == {"a": {"b": 1}, "c": 2}
    with pytest.raises(ValueError, match=r"c\.d: c is not a mapping"):
        edited(data, {"c.d": 1})
