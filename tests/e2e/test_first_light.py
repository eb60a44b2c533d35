"""The example as a user runs it: a small language model learns with vLLM, Valkey and torch in pods."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.jobs import ClusterJob
from kit.place import MOUNT, Place
from kit.session import Cluster

from drumroll.testing import merged

pytestmark = pytest.mark.timeout(1500)

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL_S = 600.0
JOB_S = 720.0
"""Twelve minutes on two cores, with what else runs there."""


@pytest.fixture
def first_light(cluster: Cluster, place: Place) -> Callable[..., ClusterJob]:
    """The job of examples/cluster, its model and problems on the volume; keyword arguments change the spec."""
    bench = cluster.bench
    for name in ("make_model.py", "task.py"):
        bench.write(f"first_light/{name}", (EXAMPLES / "first_light" / name).read_text())
    command = ("python", f"{MOUNT}/first_light/make_model.py", "--out", f"{MOUNT}/first-light", "--seed", "0")
    bench.run("env", "OMP_WAIT_POLICY=PASSIVE", *command, deadline_s=MODEL_S)
    manifest = yaml.safe_load((EXAMPLES / "cluster" / "first-light.yaml").read_text())

    def make(**changes: Any) -> ClusterJob:
        spec = merged(manifest["spec"], changes)
        return ClusterJob(place, bench, manifest["metadata"]["name"], spec, cluster.kill_container)

    return make


def steps(job: ClusterJob) -> list[dict[str, Any]]:
    """The job's metrics.jsonl."""
    text = job.workbench.run("cat", f"{job.status['jobDir']}/metrics.jsonl")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.cluster_full
def test_a_job_with_vllm_trains_to_its_end(first_light: Callable[..., ClusterJob]) -> None:
    job = first_light(steps=10, trainer={"checkpoint": {"everySteps": 5}}).apply()
    job.wait_for_condition("Ready", deadline_s=JOB_S)
    (row,) = job.table()
    assert (row["NAME"], row["PHASE"], row["ROLLOUT"]) == ("first-light", "Running", "2/2")
    job.complete(JOB_S)
    assert len(steps(job)) == 10


@pytest.mark.cluster_full
def test_the_example_learns_on_a_cluster(first_light: Callable[..., ClusterJob]) -> None:
    job = first_light().apply()
    job.complete(JOB_S)
    rewards = [row["reward/mean"] for row in steps(job)]
    first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
    assert last > first + 0.2, rewards
