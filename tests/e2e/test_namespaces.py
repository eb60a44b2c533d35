"""What namespaces and names do to jobs: deletion, quotas, images that are not there, names used again."""

import json
import time
from collections.abc import Callable

import pytest
from kit.jobs import JOB_S, SLOWLY, ClusterJob
from kit.kube import SLOW_S, conditions, patiently, uids
from kit.place import Place, restricted_pod
from kit.session import Cluster

pytestmark = [pytest.mark.cluster_full, pytest.mark.timeout(1200)]


def test_a_namespace_deleted_mid_run_is_gone_within_the_grace(make_job: Callable[..., ClusterJob]) -> None:
    job = make_job(steps=50, rollout={"engine": {"replay": SLOWLY}}).apply()
    job.wait_for_step(1)
    grace = max(pod["spec"]["terminationGracePeriodSeconds"] for pod in job.pods())
    began = time.monotonic()
    job.place.kube.delete(job.place.path)
    patiently(lambda: job.place.kube.get(job.place.path) is None, SLOW_S, "the namespace is gone")
    assert time.monotonic() - began < grace + 30


def test_a_job_under_the_name_of_a_deleted_one_adopts_nothing(make_job: Callable[..., ClusterJob]) -> None:
    job = make_job(steps=50, rollout={"engine": {"replay": SLOWLY}}).apply()
    job.wait_for_step(1)
    old, old_folder = set(job.uids().values()), job.status["jobDir"]
    job.delete()
    job.wait(lambda: job.place.kube.get(job.path) is None, "the old job is gone")
    job.spec["steps"] = 4
    job.apply()
    job.wait_for_step(1)
    assert not old & set(job.uids().values())
    assert job.status["jobDir"] != old_folder
    report = job.complete()
    assert report["counts"]["steps"] == 4


def test_a_name_that_is_taken_is_told_and_waited_for(make_job: Callable[..., ClusterJob], cluster: Cluster) -> None:
    job = make_job(steps=3)
    stranger = restricted_pod("job-scheduler", cluster.images.of("scheduler"), ["sleep", "1000"])
    job.place.apply(stranger)
    job.apply()

    def told() -> bool:
        return any(c["reason"] == "NameTaken" for c in conditions(job.get()).values())

    job.wait(told, "a condition that says so")
    assert "job-scheduler" in uids(job.place.pods("drumroll.dev/e2e=true"))
    job.place.kube.delete(f"{job.place.path}/pods/job-scheduler", grace_s=0)
    job.complete()


def test_a_quota_that_is_too_small_is_told_and_waited_for(
    make_job: Callable[..., ClusterJob], place: Place, cluster: Cluster
) -> None:
    """K2."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": 3}}}
    place.apply(quota)
    job = make_job(steps=4, rollout={"replicas": 2}).apply()
    began = time.time()

    def told() -> bool:
        condition = job.condition("Admitted")
        return condition.get("status") == "False" and condition["reason"] == "QuotaExceeded"

    job.wait(told, "Admitted=False for the quota", SLOW_S)
    assert "exceeded quota: small" in job.condition("Admitted")["message"]
    job.wait(lambda: len(job.pods()) == 3, "three pods")
    assert {pod["metadata"]["labels"]["drumroll.dev/role"] for pod in job.pods()} == {"store", "scheduler", "trainer"}
    job.wait(lambda: time.time() - began > 30, "half a minute of trying")
    if cluster.node:
        tries = [e for e in _creations(cluster, place) if e["responseStatus"]["code"] == 403]
        assert len(tries) <= (time.time() - began) / 5 + 3
    events = [event for event in place.events() if event["reason"] == "QuotaExceeded"]
    assert len(events) == 1
    place.kube.patch(f"{place.path}/resourcequotas/small", {"spec": {"hard": {"pods": "10"}}})
    job.complete()


def test_an_image_that_cannot_be_pulled_is_told_and_waited_for(
    make_job: Callable[..., ClusterJob], cluster: Cluster
) -> None:
    node = cluster.require_node()
    late = f"localhost/late:{int(time.time())}"
    job = make_job(steps=4, rollout={"image": late}).apply()

    def told() -> bool:
        condition = job.condition("RolloutReady")
        return condition.get("status") == "False" and condition["reason"] in ("ImagePullBackOff", "TooFewReplicas")

    job.wait(lambda: told() and late in job.condition("RolloutReady")["message"], "RolloutReady=False for the image")
    node.runtime("images", "tag", cluster.images.of("rollout"), late)
    try:
        # The kubelet tries again after up to five minutes.
        job.complete(deadline_s=JOB_S + 300)
    finally:
        node.runtime("images", "rm", late)


def test_an_ended_job_is_cleaned_up_in_stages(make_job: Callable[..., ClusterJob]) -> None:
    job = make_job(steps=2, cleanup={"onSuccess": {"podsSeconds": 20, "jobSeconds": 40}}).apply()
    job.complete()
    job.wait(lambda: not job.pods() or job.place.kube.get(job.path) is None, "the pods are gone")
    job.wait(lambda: job.place.kube.get(job.path) is None, "the job is gone")


def _creations(cluster: Cluster, place: Place) -> list[dict]:
    """Attempts to create pods there, by the audit log."""
    assert cluster.node is not None
    lines = [json.loads(line) for line in cluster.node.audit_log.read_text().splitlines() if place.namespace in line]
    return [
        entry
        for entry in lines
        if entry["verb"] == "create"
        and entry.get("objectRef", {}).get("resource") == "pods"
        and "objectRef" in entry
        and entry["objectRef"].get("namespace") == place.namespace
        and "subresource" not in entry["objectRef"]
    ]
