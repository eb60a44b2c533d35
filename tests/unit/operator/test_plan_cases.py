"""Cases of the operator on a cluster in memory: start, quota, evictions, trainer sets, missing rights."""

from typing import Any

import pytest
from drumroll_operator.actions import CreatePod
from drumroll_operator.cluster import PODS
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
    lab.pass_time(600)
    assert lab.names() == ["demo-scheduler", "demo-store", "demo-trainer-0"]
    admitted = lab.condition("Admitted")
    assert (admitted.status, admitted.reason) == ("False", "QuotaExceeded")
    assert "exceeded quota: small" in admitted.message
    assert reasons(lab).count("QuotaExceeded") == 1
    assert (tries(lab) - 3) * 5.0 <= lab.clock.now - begun
    lab.api.pod_quota = 10
    lab.pass_time(61)
    assert lab.said("Ready") == ("True", "Ready")
    assert lab.said("Admitted") == ("True", "Admitted")
    assert len(lab.names("rollout")) == 4


def test_what_a_quota_gives_back_goes_to_the_trainer_first_k2() -> None:
    lab = laboratory(rollout={"replicas": 4})
    lab.api.pod_quota = 5
    lab.settle()
    lab.kubelet.finish(lab.pod("trainer"), 1)
    lab.pass_time(120)
    assert lab.said("TrainerReady") == ("True", "PodsReady")
    assert len(lab.names("rollout")) == 2


# -- K4: evictions and memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["rollout", "trainer", "scheduler", "store"])
def test_an_evicted_pod_is_replaced_and_not_charged_k4(role: str) -> None:
    lab = running()
    before = lab.uids()
    lab.kubelet.evict(lab.pod(role))
    lab.pass_time(20)
    after = lab.uids()
    assert [name for name in before if before[name] != after[name]] == [lab.pod(role)["metadata"]["name"]]
    assert lab.status.restarts == []
    assert "Evicted" in reasons(lab)
    assert lab.said("Ready") == ("True", "Ready")


def test_a_trainer_over_its_memory_is_charged_and_comes_back_k4() -> None:
    lab = running()
    for _ in range(3):
        lab.kubelet.finish(lab.pod("trainer"), 137, reason="OOMKilled")
        lab.pass_time(60)
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
    lab.pass_time(30)
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
    lab.pass_time(120)
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
