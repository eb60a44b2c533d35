"""Cases of the operator on a cluster in memory: quota, evictions, rights, suspension, scaling, names, lost nodes."""

from typing import Any

import pytest
from drumroll_operator.actions import CreatePod, DeletePod, Plan, SetLive
from drumroll_operator.cluster import PODS, RLJOBS, Raw
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.pod_view import pod_view
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


def pass_time(lab: Laboratory, seconds: int) -> None:
    """Second by second, each with all that is to be done."""
    for _ in range(seconds):
        lab.settle()
        lab.clock.now += 1.0


def created(lab: Laboratory) -> list[str]:
    """Names of the pods that the operator has made, oldest first."""
    return [action.name for action in lab.operator.done if isinstance(action, CreatePod)]


def reasons(lab: Laboratory) -> list[str]:
    """Of the Events so far."""
    return [event.reason for event in lab.operator.events]


def tries(lab: Laboratory) -> int:
    """Requests so far that would have made a pod."""
    return sum(call[:2] == ("create", "pods") for call in lab.api.calls)


# -- start and steady state ------------------------------------------------------------------------------------------


def test_a_job_gets_its_pods_in_the_order_of_their_importance() -> None:
    lab = running()
    assert created(lab) == ["demo-store", "demo-scheduler", "demo-trainer-0", "demo-rollout-0", "demo-rollout-1"]
    assert all(condition.status == "True" for condition in lab.status.conditions[:9])


def test_replicas_are_not_made_before_the_trainer_has_a_node() -> None:
    lab = laboratory(trainer={"replicas": 2})
    lab.kubelet.room = 3
    lab.settle()
    assert lab.names("rollout") == []
    assert lab.said("RolloutReady") == ("False", "WaitingForTrainer")
    assert lab.said("TrainerReady") == ("False", "Unschedulable")
    lab.kubelet.room = 100
    lab.settle()
    assert lab.said("Ready") == ("True", "Ready")


def test_a_second_reconciliation_writes_nothing_and_neither_does_a_new_operator() -> None:
    lab = running()
    lab.train()
    lab.clock.now += 60.0
    lab.settle()
    version, uids = lab.api.version, lab.uids()
    for _ in range(10):
        lab.settle()
    lab.start_operator()
    lab.settle()
    assert (lab.api.version, lab.uids()) == (version, uids)


def test_a_restarted_operator_applies_the_children_of_standing_jobs_in_its_own_time() -> None:
    lab = running()
    lab.start_operator()
    before = len(lab.api.calls)
    lab.settle()
    assert not [call for call in lab.api.calls[before:] if call[0] == "patch"]
    lab.clock.now += 600.0
    lab.settle()
    again = [call[1] for call in lab.api.calls[before:] if call[0] == "patch" and call[1] != "rljobs/status"]
    assert sorted(again) == ["configmaps", "secrets", "services"]


# -- K2: quota -------------------------------------------------------------------------------------------------------


def test_a_quota_that_is_too_small_is_named_and_costs_few_requests_k2() -> None:
    lab = laboratory(rollout={"replicas": 4})
    lab.api.pod_quota = 3
    begun = lab.clock.now
    pass_time(lab, 600)
    assert lab.names() == ["demo-scheduler", "demo-store", "demo-trainer-0"]
    admitted = lab.condition("Admitted")
    assert (admitted.status, admitted.reason) == ("False", "QuotaExceeded")
    assert "exceeded quota: small" in admitted.message
    assert reasons(lab).count("QuotaExceeded") == 1
    assert (tries(lab) - 3) * 5.0 <= lab.clock.now - begun
    lab.api.pod_quota = 10
    pass_time(lab, 61)
    assert lab.said("Ready") == ("True", "Ready")
    assert lab.said("Admitted") == ("True", "Admitted")
    assert len(lab.names("rollout")) == 4


def test_what_a_quota_gives_back_goes_to_the_trainer_first_k2() -> None:
    lab = laboratory(rollout={"replicas": 4})
    lab.api.pod_quota = 5
    lab.settle()
    lab.kubelet.finish(lab.pod("trainer"), 1)
    pass_time(lab, 120)
    assert lab.said("TrainerReady") == ("True", "PodsReady")
    assert len(lab.names("rollout")) == 2


# -- K4: evictions and memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["rollout", "trainer", "scheduler", "store"])
def test_an_evicted_pod_is_replaced_and_not_charged_k4(role: str) -> None:
    lab = running()
    before = lab.uids()
    lab.kubelet.evict(lab.pod(role))
    pass_time(lab, 20)
    after = lab.uids()
    assert [name for name in before if before[name] != after[name]] == [lab.pod(role)["metadata"]["name"]]
    assert lab.status.restarts == []
    assert "Evicted" in reasons(lab)
    assert lab.said("Ready") == ("True", "Ready")


def test_a_trainer_over_its_memory_is_charged_and_comes_back_k4() -> None:
    lab = running()
    for _ in range(3):
        lab.kubelet.finish(lab.pod("trainer"), 137, reason="OOMKilled")
        pass_time(lab, 60)
    (entry,) = lab.status.restarts
    assert (entry.role, entry.count, entry.last_reason) == ("trainer", 3, "OOMKilled")
    assert "memory limit of 2Gi" in entry.last_message
    assert len(set(entry.charged_uids)) == 3
    assert lab.said("TrainerReady") == ("True", "PodsReady")
    assert lab.status.trainer is not None
    assert lab.status.trainer.set_number == 4


def test_charged_pods_wait_longer_each_time() -> None:
    lab = running()
    waits = []
    for _ in range(3):
        uid, begun = lab.pod("scheduler")["metadata"]["uid"], lab.clock.now
        lab.kubelet.finish(lab.pod("scheduler"), 1)
        while lab.uids().get("demo-scheduler") in (uid, None):
            lab.settle()
            lab.clock.now += 1.0
        waits.append(lab.clock.now - begun)
        lab.settle()
    assert [round(wait) for wait in waits] == [6, 11, 21]


# -- trainer sets ----------------------------------------------------------------------------------------------------


def test_if_one_of_several_trainer_pods_ends_all_are_replaced_together() -> None:
    lab = running(trainer={"replicas": 3})
    before = lab.uids()
    lab.kubelet.finish(lab.pod("trainer", 1), 1)
    lab.operator.catch_up()
    lab.operator.reconcile()
    lab.kubelet.finish(lab.pod("trainer", 2), 1)  # the others fail for it, and are not to blame
    pass_time(lab, 30)
    after = lab.uids()
    assert all(before[name] != after[name] for name in after if "trainer" in name)
    assert {pod_view(pod).set_number for pod in lab.pods("trainer")} == {2}
    assert [(entry.role, entry.count) for entry in lab.status.restarts] == [("trainer", 1)]


def test_a_trainer_pod_that_vanishes_takes_its_set_with_it_uncharged() -> None:
    lab = running(trainer={"replicas": 2})
    before = lab.uids()
    lab.api.delete(PODS, NAMESPACE, "demo-trainer-0", grace_s=0)
    lab.settle()
    after = lab.uids()
    assert before["demo-trainer-1"] != after["demo-trainer-1"]
    assert lab.status.restarts == []
    assert "TrainerReplaced" in reasons(lab)


# -- K8: missing rights ----------------------------------------------------------------------------------------------


def test_a_missing_right_is_named_with_verb_and_resource_k8() -> None:
    lab = laboratory()
    lab.api.forbidden = {("create", "pods")}
    pass_time(lab, 120)
    admitted = lab.condition("Admitted")
    assert (admitted.status, admitted.reason) == ("False", "MissingRights")
    assert admitted.message.startswith("the operator may not create pods (demo-store)")
    assert lab.said("Ready") == ("False", "MissingRights")
    assert tries(lab) <= 5
    lab.api.forbidden = set()
    lab.clock.now += 60.0
    lab.settle()
    assert lab.said("Ready") == ("True", "Ready")


def test_no_pod_is_made_before_its_children_k8() -> None:
    lab = laboratory()
    lab.api.forbidden = {("patch", "secrets")}
    lab.settle()
    assert lab.names() == []
    assert lab.condition("Admitted").message.startswith("the operator may not patch secrets")


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
    pass_time(lab, 300)
    assert lab.said("Admitted") == ("False", "NamespaceTerminating")
    assert sum(call[0] == "patch" and call[1] == "configmaps" for call in lab.api.calls) <= 9


@pytest.mark.parametrize("role", ["rollout", "trainer", "scheduler"])
def test_a_pod_on_a_lost_node_is_replaced_by_force(role: str) -> None:
    lab = running()
    lost = lab.pod(role)
    lab.kubelet.lost.add(lost["metadata"]["uid"])
    lab.api.delete(PODS, NAMESPACE, lost["metadata"]["name"])
    pass_time(lab, 70)
    assert lab.pod(role)["metadata"]["uid"] != lost["metadata"]["uid"]
    assert "ForceDeleted" in reasons(lab)
    assert lab.status.restarts == []


def test_the_store_on_a_lost_node_is_never_deleted_by_force() -> None:
    lab = running()
    store = lab.pod("store")
    lab.kubelet.lost.add(store["metadata"]["uid"])
    lab.api.delete(PODS, NAMESPACE, "demo-store")
    pass_time(lab, 300)
    assert lab.pod("store")["metadata"]["uid"] == store["metadata"]["uid"]
    stream = lab.condition("StreamReady")
    assert (stream.status, stream.reason) == ("False", "NodeLost")
    assert "kubectl delete pod demo-store --force" in stream.message


def test_an_external_store_gets_no_pod() -> None:
    lab = running(stream={"url": "redis://redis.team.svc:6379", "secretRef": "redis"})
    assert lab.names() == [name for name in WORKERS if name != "demo-store"]
    assert lab.said("StreamReady") == ("True", "External")


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    lab = running()
    lab.api.edit(
        RLJOBS, NAMESPACE, "demo", lambda raw: raw["metadata"].update(deletionTimestamp="2027-01-15T08:00:00Z")
    )
    lab.kubelet.finish(lab.pod("trainer"), 1)
    assert lab.plan() == Plan()
