"""What clusters do to pods: every job goes on, ends as it should, and its audit finds nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.jobs import SLOWLY, ClusterJob

from drumroll.testing import merged

pytestmark = pytest.mark.timeout(1200)

FULL = pytest.mark.cluster_full
QUICK = pytest.mark.cluster


@pytest.fixture
def slow_job(make_job: Callable[..., ClusterJob]) -> Callable[..., ClusterJob]:
    """A job of ten steps of about two seconds, checkpoints at 4, 8 and 10."""

    def make(name: str = "job", **changes: Any) -> ClusterJob:
        rollout = merged({"engine": {"replay": SLOWLY}}, changes.pop("rollout", {}))
        return make_job(name, steps=10, rollout=rollout, trainer={"checkpoint": {"everySteps": 4}}, **changes)

    return make


@QUICK
def test_a_deleted_rollout_pod_comes_back_at_no_charge(slow_job: Callable[..., ClusterJob]) -> None:
    job = slow_job().apply()
    job.wait_for_step(2)
    gone = job.delete_pod("rollout-0")
    job.wait_for_pod("rollout-0", other_than=gone)
    job.complete()
    assert not job.status.get("restarts")


@QUICK
def test_a_rollout_pod_out_of_memory_comes_back_and_its_limit_is_named(slow_job: Callable[..., ClusterJob]) -> None:
    memory = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "900Mi"}}
    job = slow_job(rollout={"engine": {"replay": SLOWLY}, "resources": memory}).apply()
    job.wait_for_step(2)
    gone = job.wait_for_pod("rollout-0")["metadata"]["uid"]
    job.exhaust_memory("rollout-0")
    job.wait_for_pod("rollout-0", other_than=gone)
    job.complete()
    (charged,) = job.status["restarts"]
    assert (charged["role"], charged["count"], charged["lastReason"]) == ("rollout", 1, "OOMKilled")
    assert "900Mi" in charged["lastMessage"]


@FULL
def test_an_evicted_rollout_pod_comes_back_at_no_charge(slow_job: Callable[..., ClusterJob]) -> None:
    job = slow_job().apply()
    job.wait_for_step(2)
    gone = job.evict("rollout-0")
    job.wait_for_pod("rollout-0", other_than=gone)
    job.complete()
    assert not job.status.get("restarts")
    assert "Evicted" in job.reasons()


@QUICK
def test_a_trainer_killed_between_step_and_checkpoint_loses_no_step(slow_job: Callable[..., ClusterJob]) -> None:
    # Slower still: it has to be killed before the checkpoint of step 8.
    job = slow_job(rollout={"engine": {"replay": {**SLOWLY, "stepSeconds": 0.6}}}).apply()
    job.wait_for_step(5)
    killed = job.kill("trainer-0")
    job.wait_for_pod("trainer-0", other_than=killed, ready=False)
    report = job.complete()
    assert report["counts"]["steps"] == 10
    (charged,) = job.status["restarts"]
    assert (charged["role"], charged["count"]) == ("trainer", 1)


@QUICK
def test_a_killed_scheduler_is_followed_by_another(slow_job: Callable[..., ClusterJob]) -> None:
    job = slow_job().apply()
    job.wait_for_step(3)
    others = {name: uid for name, uid in job.uids().items() if "scheduler" not in name}
    killed = job.kill("scheduler")
    job.wait_for_pod("scheduler", other_than=killed)
    assert others.items() <= job.uids().items(), "only the scheduler was replaced"
    job.complete()


@FULL
def test_a_killed_store_comes_back_with_all_that_was_in_it(slow_job: Callable[..., ClusterJob]) -> None:
    job = slow_job().apply()
    job.wait_for_step(3)
    killed = job.kill("store")
    job.wait_for_pod("store", other_than=killed)
    job.complete()


@FULL
def test_a_trainer_of_two_pods_is_a_gang(slow_job: Callable[..., ClusterJob]) -> None:
    job = slow_job(algorithm={"promptsPerStep": 4})
    job.spec["trainer"] |= {"replicas": 2}
    job.apply()
    job.wait_for_step(2)
    first = job.uids("trainer")
    assert len(first) == 2
    job.kill("trainer-1")

    def replaced() -> bool:
        now = job.uids("trainer")
        return len(now) == 2 and not set(now.values()) & set(first.values())

    job.wait(replaced, "both trainer pods are new")
    job.complete()
