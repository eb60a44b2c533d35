"""A job and settings to render."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from drumroll_operator.settings import OperatorSettings

from drumroll.api.loading import parse_jobs
from drumroll.api.spec import RLJob

MakeJob = Callable[..., RLJob]


@pytest.fixture(scope="session")
def make_job() -> MakeJob:
    """A job with a uid, as read from an API server; keywords replace parts of its spec."""

    def make(**changes: Any) -> RLJob:
        spec: dict[str, Any] = {
            "model": {"path": "models/tiny", "dtype": "float32"},
            "data": {"train": {"path": "t.jsonl"}, "maxPromptTokens": 16, "maxResponseTokens": 16},
            "reward": {"type": "exact"},
            "rollout": {"replicas": 2},
            "weights": {"volume": {"persistentVolumeClaim": {"claimName": "files"}}},
        }
        metadata = {"name": "tokens", "namespace": "team", "uid": "0c2d7a52-6f5e-4a7e-9d0b-0123456789ab"}
        wire = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec | changes}
        loaded = parse_jobs(json.dumps(wire), "test")
        assert not loaded.problems, loaded.problems
        return loaded.jobs[0].job

    return make


@pytest.fixture(scope="session")
def settings() -> OperatorSettings:
    """As a chart without values renders them."""
    images = {role: {"reference": f"registry.test/{role}:1"} for role in ("scheduler", "rollout", "trainer")}
    return OperatorSettings.model_validate({"images": images})
