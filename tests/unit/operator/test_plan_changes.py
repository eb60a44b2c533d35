"""What is changed while a job runs, and what happens around it: suspension, scaling, names, namespaces, lost nodes."""

from typing import Any

import pytest
from drumroll_operator.actions import DeletePod, Plan, SetLive
from drumroll_operator.cluster import PODS, RLJOBS, Raw
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.rehearsal import NAMESPACE

WORKERS = ["demo-rollout-0", "demo-rollout-1", "demo-scheduler", "demo-store", "demo-trainer-0"]


def laboratory(**changes: Any) -> Laboratory:
    """A job with more steps than a test makes."""
    return Laboratory({**SPEC, "steps": 100, **changes})


def running(**changes: Any) -> Laboratory:
    """The same, with all parts ready."""
    lab = laboratory(**changes)
    lab.settle()
    assert lab.status.phase == "Running"
    return lab


def reasons(lab: Laboratory) -> list[str]:
    """Of the Events so far."""
    return [event.reason for event in lab.operator.events]


# -- K10: suspend and resume -----------------------------------------------------------------------------------------


def test_suspended_jobs_keep_the_store_alone_and_write_nothing_k10() -> None:
    lab = running()
    lab.train(3)
    lab.edit(suspend=True)
    lab.settle(seconds=1.0)
    assert lab.names() == ["demo-store"]
    assert lab.said("Suspended") == ("True", "Suspended")
    assert lab.status.phase == "Suspended"
    version = lab.api.version
    for _ in range(60):
        lab.clock.now += 1.0
        lab.settle()
    assert lab.api.version == version
    lab.edit(suspend=False)
    lab.settle(seconds=1.0)
    assert lab.status.phase == "Running"
    assert lab.said("Suspended") == ("False", "Resumed")
    assert lab.status.suspended_seconds == pytest.approx(60.0, abs=5.0)
    assert lab.status.step == 3


def test_the_scheduler_outlives_trainer_and_replicas_when_a_job_is_suspended_k10() -> None:
    lab = running()
    lab.edit(suspend=True)
    lab.operator.catch_up()
    lab.operator.reconcile()
    deleted = [action.name for action in lab.operator.done if isinstance(action, DeletePod)]
    assert sorted(deleted) == ["demo-rollout-0", "demo-rollout-1", "demo-trainer-0"]
    lab.settle()
    assert lab.operator.done[-1] == DeletePod("demo-scheduler", lab.operator.done[-1].uid)  # type: ignore[union-attr]


def test_suspended_twice_quickly_ends_suspended_k10() -> None:
    lab = running()
    for suspend in (True, False, True):
        lab.edit(suspend=suspend)
        lab.operator.catch_up()
        lab.operator.reconcile()
    lab.settle()
    assert lab.names() == ["demo-store"]
    assert lab.said("Suspended") == ("True", "Suspended")


def test_suspended_before_the_start_nothing_is_made_k10() -> None:
    lab = laboratory(suspend=True)
    lab.settle()
    assert lab.pods() == []
    assert lab.said("Suspended") == ("True", "Suspended")
    lab.edit(suspend=False)
    lab.settle()
    assert lab.said("Ready") == ("True", "Ready")


def test_a_complete_job_stays_complete_when_it_is_suspended_k10() -> None:
    lab = Laboratory()
    lab.settle(seconds=1.0, train=True)
    assert lab.status.phase == "Complete"
    lab.edit(suspend=True)
    lab.settle()
    assert lab.status.phase == "Complete"
    assert lab.said("Suspended") == ("False", "JobEnded")
    assert "demo-trainer-0" in lab.names()


def test_a_pod_that_failed_before_a_suspension_does_not_block_the_resumed_run_k10() -> None:
    lab = running()
    lab.kubelet.finish(lab.pod("rollout"), 1)
    lab.edit(suspend=True)
    lab.settle()
    lab.edit(suspend=False)
    lab.settle()
    assert lab.names() == WORKERS
    assert lab.said("Ready") == ("True", "Ready")


# -- scaling ---------------------------------------------------------------------------------------------------------


def test_scaling_up_fills_the_lowest_free_indices_and_tells_the_scheduler() -> None:
    lab = running()
    lab.edit(rollout__replicas=5)
    lab.settle()
    assert lab.names("rollout") == [f"demo-rollout-{index}" for index in range(5)]
    assert SetLive("replicas", 5) in lab.operator.done
    assert lab.status.config == "demo-config-5-100"


def test_scaling_down_takes_the_replicas_with_least_in_flight() -> None:
    """The laboratory's replicas have 100 - index tokens in flight; one of five is not ready."""
    lab = running(rollout={"replicas": 5})
    lab.kubelet.unready(lab.pod("rollout", 1))
    lab.operator.catch_up()
    lab.operator.reconcile()
    lab.edit(rollout__replicas=2)
    lab.settle()
    assert lab.names("rollout") == ["demo-rollout-0", "demo-rollout-2"]
    assert "ScaledDown" in reasons(lab)
    lab.edit(rollout__replicas=3)
    lab.settle()
    assert lab.names("rollout") == ["demo-rollout-0", "demo-rollout-1", "demo-rollout-2"]


def test_a_job_never_holds_more_replicas_than_it_asks_for() -> None:
    lab = running(rollout={"replicas": 3})
    lab.api.delete(PODS, NAMESPACE, "demo-rollout-1")
    lab.operator.catch_up()
    lab.operator.reconcile()
    assert len(lab.names("rollout")) == 3
    lab.settle()
    assert lab.names("rollout") == [f"demo-rollout-{index}" for index in range(3)]


def test_old_revisions_of_the_config_go_when_no_pod_mounts_them() -> None:
    lab = running()
    configs = lambda: [key[2] for key in lab.api.objects if key[0] == "ConfigMap"]  # noqa: E731
    lab.edit(rollout__replicas=3)
    lab.settle()
    lab.edit(rollout__replicas=2)
    lab.settle()
    assert configs() == ["demo-config-2-100"]
    lab.edit(steps=50)
    lab.settle()
    assert sorted(configs()) == ["demo-config-2-100", "demo-config-2-50"]


# -- names, namespaces, nodes ----------------------------------------------------------------------------------------


def test_nothing_of_an_earlier_job_of_the_same_name_is_adopted() -> None:
    lab = running()
    old = lab.uids()
    lab.delete_job()
    lab.submit({**SPEC, "steps": 100})
    lab.operator.catch_up()
    lab.operator.reconcile()
    assert lab.uids() == old
    assert lab.said("Admitted") == ("False", "NameTaken")
    assert lab.said("SchedulerReady") == ("False", "NameTaken")
    lab.settle(seconds=5.0)
    assert not set(lab.uids().values()) & set(old.values())
    assert lab.said("Ready") == ("True", "Ready")


def test_a_strangers_pod_with_a_name_of_ours_is_left_alone() -> None:
    lab = laboratory()
    lab.api.create(stranger("demo-trainer-0"))
    lab.settle()
    assert lab.said("Admitted") == ("False", "NameTaken")
    assert [name for name in lab.names() if "trainer" in name] == []
    lab.api.delete(PODS, NAMESPACE, "demo-trainer-0", grace_s=0)
    lab.clock.now += 60.0
    lab.settle(seconds=10.0)
    assert lab.said("Ready") == ("True", "Ready")


def stranger(name: str) -> Raw:
    """A pod of nobody."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {}}


def test_in_a_terminating_namespace_little_is_tried() -> None:
    lab = laboratory()
    lab.api.terminating = {NAMESPACE}
    lab.pass_time(300)
    assert lab.said("Admitted") == ("False", "NamespaceTerminating")
    assert sum(call[0] == "patch" and call[1] == "configmaps" for call in lab.api.calls) <= 9


@pytest.mark.parametrize("role", ["rollout", "trainer", "scheduler"])
def test_a_pod_on_a_lost_node_is_replaced_by_force(role: str) -> None:
    lab = running()
    lost = lab.pod(role)
    lab.kubelet.lost.add(lost["metadata"]["uid"])
    lab.api.delete(PODS, NAMESPACE, lost["metadata"]["name"])
    lab.pass_time(70)
    assert lab.pod(role)["metadata"]["uid"] != lost["metadata"]["uid"]
    assert "ForceDeleted" in reasons(lab)
    assert lab.status.restarts == []


def test_the_store_on_a_lost_node_is_never_deleted_by_force() -> None:
    lab = running()
    store = lab.pod("store")
    lab.kubelet.lost.add(store["metadata"]["uid"])
    lab.api.delete(PODS, NAMESPACE, "demo-store")
    lab.pass_time(300)
    assert lab.pod("store")["metadata"]["uid"] == store["metadata"]["uid"]
    stream = lab.condition("StreamReady")
    assert (stream.status, stream.reason) == ("False", "NodeLost")
    assert "kubectl delete pod demo-store --force" in stream.message


def test_an_external_store_gets_no_pod() -> None:
    lab = running(stream={"url": "redis://redis.team.svc:6379", "secretRef": "redis"})
    assert lab.names() == [name for name in WORKERS if name != "demo-store"]
    assert lab.said("StreamReady") == ("True", "External")


def test_x6_a_store_that_fails_over_is_told_by_one_event_and_one_condition() -> None:
    lab = running(stream={"url": "redis://redis.team.svc:6379", "secretRef": "redis"})
    uid, uids = lab.job["metadata"]["uid"], lab.uids()
    lab.ledger(uid).store_failing = True
    for _ in range(5):
        lab.clock.now += 2.0
        lab.settle()
    assert lab.said("StreamReady") == lab.said("Ready") == ("False", "StoreUnavailable")
    assert lab.status.phase == "Running"
    lab.ledger(uid).store_failing = False
    lab.settle()
    assert lab.said("StreamReady") == ("True", "External")
    assert [event.reason for event in lab.operator.events].count("StoreUnavailable") == 1
    assert lab.uids() == uids


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    lab = running()
    lab.api.edit(
        RLJOBS, NAMESPACE, "demo", lambda raw: raw["metadata"].update(deletionTimestamp="2027-01-15T08:00:00Z")
    )
    lab.kubelet.finish(lab.pod("trainer"), 1)
    assert lab.plan() == Plan()
