"""How jobs end: the scheduler's word, users' errors, budgets, deadlines; the clean-up, and that it stays ended."""

import json
from dataclasses import replace
from typing import Any

import pytest
from drumroll_operator.actions import CreatePod
from drumroll_operator.cluster import PODS
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.observed import Observed, Refusal
from drumroll_operator.plan import plan
from drumroll_operator.rehearsal import NAMESPACE

from drumroll.api.status import PolicyLag


def laboratory(**changes: Any) -> Laboratory:
    """A job with all parts ready and many steps."""
    lab = Laboratory({**SPEC, "steps": 100, **changes})
    lab.settle()
    return lab


def alive(lab: Laboratory) -> list[str]:
    """Names of the pods that still run."""
    return [pod["metadata"]["name"] for pod in lab.pods() if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def refused(lab: Laboratory) -> Observed:
    """What the operator sees of a job that cannot be rendered."""
    seen = lab.operator.observe()
    assert seen is not None
    return replace(seen, refusal=Refusal("NoVolume", "weights have nowhere to go"))


# -- the scheduler's word --------------------------------------------------------------------------------------------


def test_a_job_whose_scheduler_says_so_is_complete_and_holds_no_gpu() -> None:
    lab = Laboratory()
    lab.settle(seconds=1.0, train=True)
    status = lab.status
    assert (status.phase, status.step, status.version, status.eta_seconds, status.gpus) == ("Complete", 5, 5, 0, 0)
    assert (status.steps, status.samples, status.policy_lag) == (5, 20, PolicyLag(min=0, mean=0.5, max=1))
    assert lab.said("Complete") == ("True", "StepsDone")
    assert lab.said("Failed") == ("False", "JobEnded")
    assert lab.said("Ready") == ("False", "StepsDone")
    assert alive(lab) == []
    assert sorted(lab.names("trainer") + lab.names("rollout")) == ["demo-rollout-0", "demo-rollout-1", "demo-trainer-0"]
    assert status.restarts == []


def test_workers_that_end_with_the_job_are_no_failures() -> None:
    lab = laboratory(steps=2)
    lab.train(2)
    lab.end_processes()
    lab.operator.catch_up()
    lab.operator.reconcile()
    assert lab.said("Degraded") == ("False", "AsWanted")
    assert lab.said("Ready") == ("True", "Ready")
    assert lab.said("Progressing") == ("True", "Finishing")


def test_a_job_that_its_scheduler_fails_has_failed_with_its_reason() -> None:
    lab = laboratory()
    lab.ledger(lab.job["metadata"]["uid"]).failed = "40 of 40 groups had equal rewards"
    for _ in range(4):
        lab.end_processes()
        lab.settle()
    assert lab.said("Failed") == ("True", "TrainingFailed")
    assert lab.status.message == "40 of 40 groups had equal rewards"
    assert lab.status.restarts == []


def test_a_scheduler_whose_last_words_are_lost_has_said_the_same_before() -> None:
    lab = laboratory(steps=1)
    lab.train()
    lab.operator.observe()
    lab.kubelet.finish(lab.pod("scheduler"), 0)
    lab.settle()
    assert lab.said("Complete") == ("True", "StepsDone")
    assert lab.status.step == 1


def test_a_scheduler_that_ends_without_a_word_is_started_again() -> None:
    lab = laboratory()
    lab.kubelet.finish(lab.pod("scheduler"), 0, message="bye")
    lab.pass_time(10)
    assert lab.said("SchedulerReady") == ("True", "PodsReady")
    assert [(entry.role, entry.last_reason) for entry in lab.status.restarts] == [("scheduler", "EndedEarly")]


def test_a_trainer_that_says_it_is_done_too_early_is_charged_after_a_while() -> None:
    lab = laboratory()
    lab.kubelet.finish(lab.pod("trainer"), 0)
    lab.pass_time(50)
    assert lab.status.restarts == []
    lab.pass_time(40)
    assert [(entry.role, entry.last_reason) for entry in lab.status.restarts] == [("trainer", "EndedEarly")]
    assert lab.said("TrainerReady") == ("True", "PodsReady")


def test_the_end_latches() -> None:
    lab = Laboratory()
    lab.settle(seconds=1.0, train=True)
    made, end = len([a for a in lab.operator.done if isinstance(a, CreatePod)]), lab.status.end_time
    for name in lab.names():
        lab.api.delete(PODS, NAMESPACE, name, grace_s=0)
    lab.edit(rollout__replicas=4, steps=1000)
    lab.start_operator()
    lab.pass_time(30)
    assert lab.pods() == []
    assert made == 5
    assert (lab.status.phase, lab.status.end_time) == ("Complete", end)
    assert lab.status.observed_generation == 2


# -- users' errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["rollout", "trainer", "scheduler"])
def test_a_users_error_fails_the_job_at_once_with_the_pods_own_words(role: str) -> None:
    lab = laboratory()
    lab.kubelet.finish(lab.pod(role), 2, message="reward.py: score() takes 1 argument, 3 were given")
    lab.settle()
    assert lab.said("Failed") == ("True", "UserError")
    assert "score() takes 1 argument" in (lab.status.message or "")
    assert not [name for name in alive(lab) if "store" not in name]


def test_a_long_message_with_a_nul_is_told_and_cut_k12() -> None:
    lab = laboratory()
    cause = "奖励函数" * 1250 + "\x00 RewardError: 根本原因"
    lab.kubelet.finish(lab.pod("rollout"), 2, message=cause)
    lab.settle()
    (event,) = [event for event in lab.operator.events if event.reason == "UserError"]
    assert len(event.message.encode()) <= 1024
    assert event.message.endswith("RewardError: 根本原因")
    assert event.message.startswith("demo-rollout-0")
    message = lab.condition("Failed").message
    assert len(message) <= 32_768
    assert "\x00" not in message
    assert message.endswith("根本原因")
    assert json.loads(json.dumps(lab.status.to_wire(), ensure_ascii=False))["phase"] == "Failed"


# -- budgets ---------------------------------------------------------------------------------------------------------


def test_a_role_that_fails_more_often_than_its_budget_bears_fails_the_job() -> None:
    lab = laboratory(trainer={"restartPolicy": {"maxRestarts": 2}})
    for _ in range(3):
        lab.kubelet.finish(lab.pod("trainer"), 1, message="CUDA error: an illegal memory access")
        lab.pass_time(40)
    assert lab.said("Failed") == ("True", "BackoffLimitExceeded")
    assert "trainer failed 3 times" in (lab.status.message or "")
    assert "illegal memory access" in (lab.status.message or "")
    assert not [name for name in alive(lab) if "store" not in name]


def test_failures_outside_the_window_are_forgotten() -> None:
    lab = laboratory(trainer={"restartPolicy": {"maxRestarts": 1, "windowSeconds": 100}})
    for _ in range(4):
        lab.kubelet.finish(lab.pod("trainer"), 1)
        lab.pass_time(20)
        lab.clock.now += 100.0
        lab.settle()
    assert lab.status.phase == "Running"
    assert [entry.count for entry in lab.status.restarts] == [1]


def test_rollouts_bear_their_budget_times_replicas() -> None:
    lab = laboratory(rollout={"replicas": 3, "restartPolicy": {"maxRestarts": 1}})
    for index in range(3):
        lab.kubelet.finish(lab.pod("rollout", index), 1)
    lab.pass_time(30)
    assert (lab.status.phase, [entry.count for entry in lab.status.restarts]) == ("Running", [3])
    lab.kubelet.finish(lab.pod("rollout", 0), 1)
    lab.settle()
    assert lab.said("Failed") == ("True", "BackoffLimitExceeded")


def test_a_process_that_found_a_successor_is_not_charged() -> None:
    lab = laboratory()
    lab.kubelet.finish(lab.pod("trainer"), 75)
    lab.pass_time(20)
    assert lab.status.restarts == []
    assert lab.said("TrainerReady") == ("True", "PodsReady")


# -- deadlines -------------------------------------------------------------------------------------------------------


def test_a_job_that_is_not_ready_in_time_fails_and_gives_back_what_it_holds() -> None:
    lab = Laboratory({**SPEC, "pendingDeadlineSeconds": 120})
    lab.kubelet.broken_images = {"demo-rollout-0", "demo-rollout-1"}
    lab.pass_time(110)
    assert lab.status.phase == "Starting"
    assert lab.said("Degraded") == ("True", "ImagePullBackOff")
    lab.pass_time(15)
    assert lab.said("Failed") == ("True", "PendingDeadlineExceeded")
    assert "ImagePullBackOff" not in (lab.status.message or "")
    assert "Back-off pulling image" in (lab.status.message or "")
    assert not [name for name in alive(lab) if "store" not in name]


def test_a_job_that_was_ready_once_is_pending_no_more() -> None:
    lab = laboratory(pendingDeadlineSeconds=60)
    lab.kubelet.broken_images = {"demo-trainer-0"}
    lab.kubelet.evict(lab.pod("trainer"))
    lab.pass_time(200)
    assert lab.status.phase == "Running"


def test_the_pending_deadline_is_counted_from_the_resumption() -> None:
    lab = laboratory(pendingDeadlineSeconds=60)
    lab.edit(suspend=True)
    lab.pass_time(300)
    lab.kubelet.broken_images = {"demo-trainer-0"}
    lab.edit(suspend=False)
    lab.pass_time(55)
    assert lab.status.phase == "Starting"
    lab.pass_time(10)
    assert lab.said("Failed") == ("True", "PendingDeadlineExceeded")


def test_a_quick_suspension_does_not_make_a_running_job_late() -> None:
    lab = laboratory(pendingDeadlineSeconds=60)
    lab.clock.now += 3600.0
    lab.settle()
    for suspend in (True, False):
        lab.edit(suspend=suspend)
        lab.operator.catch_up()
        lab.operator.reconcile()
    lab.pass_time(60)
    assert lab.status.phase == "Running"


def test_suspended_time_does_not_count_for_the_active_deadline() -> None:
    lab = laboratory(activeDeadlineSeconds=300)
    lab.pass_time(100)
    lab.edit(suspend=True)
    lab.pass_time(1000)
    lab.edit(suspend=False)
    lab.pass_time(190)
    assert lab.status.phase == "Running"
    lab.pass_time(20)
    assert lab.said("Failed") == ("True", "ActiveDeadlineExceeded")


def test_a_job_that_stalls_fails_and_one_that_samples_does_not() -> None:
    lab = laboratory(stallDeadlineSeconds=100)
    uid = lab.job["metadata"]["uid"]
    for _ in range(5):
        lab.pass_time(60)
        lab.ledger(uid).samples += 1
    assert lab.status.phase == "Running"
    lab.pass_time(120)
    assert lab.said("Failed") == ("True", "StallDeadlineExceeded")


def test_a_job_that_is_refused_still_fails_at_its_pending_deadline() -> None:
    lab = Laboratory({**SPEC, "pendingDeadlineSeconds": 60})
    lab.operator.catch_up()
    seen = refused(lab)
    first = plan(seen)
    assert first.status is not None
    assert (first.status.phase, first.status.message) == ("Pending", "weights have nowhere to go")
    assert first.requeue_s is not None
    assert first.requeue_s <= 60.0
    late = plan(replace(seen, now=seen.now + 61.0, job=replace(seen.job, status=first.status)))
    assert late.status is not None
    assert late.status.phase == "Failed"
    assert "weights have nowhere to go" in (late.status.message or "")
    assert [action for action in late.actions if isinstance(action, CreatePod)] == []


def test_a_running_job_that_is_refused_does_not_stall() -> None:
    lab = laboratory(stallDeadlineSeconds=60)
    seen = refused(lab)
    late = plan(replace(seen, now=seen.now + 600.0))
    assert late.status is not None
    assert late.status.phase == "Running"
