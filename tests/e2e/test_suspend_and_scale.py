"""Suspending, resuming and scaling a job while it runs."""

import time
from collections.abc import Callable

import pytest
from kit.jobs import SLOWLY, ClusterJob

pytestmark = [pytest.mark.cluster_full, pytest.mark.timeout(1500)]


def _suspended(job: ClusterJob) -> None:
    job.wait_for_condition("Suspended")
    job.wait(lambda: {p["metadata"]["labels"]["drumroll.dev/role"] for p in job.pods()} <= {"store"}, "only the store")


def test_a_suspended_job_holds_nothing_and_goes_on_where_it_was(make_job: Callable[..., ClusterJob]) -> None:
    """K10."""
    changes = {"rollout": {"engine": {"replay": SLOWLY}}, "trainer": {"checkpoint": {"everySteps": 2}}}
    job = make_job(steps=8, activeDeadlineSeconds=600, **changes).apply()
    job.wait_for_step(3)
    job.patch({"suspend": True})
    _suspended(job)
    assert job.phase == "Suspended"
    stored = job.get()["metadata"]["resourceVersion"]
    began = time.monotonic()
    while time.monotonic() - began < 60:
        assert job.get()["metadata"]["resourceVersion"] == stored, "no write while it is suspended"
        time.sleep(2)  # the time itself is what is tested
    job.patch({"suspend": False})
    job.wait_for_phase("Running")
    assert job.condition("Suspended")["status"] == "False"
    report = job.complete()
    assert report["counts"]["steps"] == 8
    assert job.status["suspendedSeconds"] >= 60


def test_a_job_can_be_suspended_twice_quickly_and_before_its_start(make_job: Callable[..., ClusterJob]) -> None:
    """K10."""
    job = make_job(steps=6, suspend=True, rollout={"engine": {"replay": SLOWLY}}).apply()
    job.wait_for_condition("Suspended")
    assert job.pods() == []
    job.patch({"suspend": False})
    job.wait_for_step(2)
    for suspend in (True, False, True, False):
        job.patch({"suspend": suspend})
    job.complete()
    job.patch({"suspend": True})
    generation = job.get()["metadata"]["generation"]
    job.wait(lambda: job.status["observedGeneration"] == generation, "the change is seen")
    assert job.phase == "Complete"


def test_kubectl_scale_adds_and_drains_replicas(make_job: Callable[..., ClusterJob]) -> None:
    job = make_job(steps=25, rollout={"replicas": 2, "engine": {"replay": SLOWLY}}).apply()
    job.wait(lambda: job.status.get("rollout", {}).get("ready") == 2, "two replicas")
    others = {name: uid for name, uid in job.uids().items() if "rollout" not in name}
    job.place.kubectl("scale", "rlj/job", "--replicas=5")
    job.wait(lambda: job.status.get("rollout", {}).get("ready") == 5, "five replicas")
    job.place.kubectl("scale", "rlj/job", "--replicas=1")
    job.wait(lambda: len(job.uids("rollout")) == 1, "one replica")
    assert others.items() <= job.uids().items(), "nothing else was replaced"
    scale = job.place.kube.get(f"{job.path}/scale")
    assert scale is not None
    assert scale["spec"]["replicas"] == 1
    assert "drumroll.dev/role=rollout" in scale["status"]["selector"]
    job.complete()
