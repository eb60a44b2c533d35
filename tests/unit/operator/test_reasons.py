"""Every reason of the contract is said by something: of a pod's state, of a refusal, or in the course of a job."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from drumroll_operator import reasons
from drumroll_operator.actions import Plan, Record
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.observed import (
    Exit,
    Failure,
    FailureKind,
    Observed,
    PodPhase,
    PodView,
    Progress,
    Refusal,
    ReplicaProgress,
)
from drumroll_operator.plan import plan
from drumroll_operator.problems import problem
from drumroll_operator.timings import Timings
from drumroll_operator.verdicts import Cause, verdict

NOW = 1_000.0
TIMINGS = Timings()


def pod(**changes: Any) -> PodView:
    """A trainer pod."""
    return replace(PodView("j-trainer-0", "u", "j", "trainer", set_number=1, created=NOW), **changes)


def failed(code: int = 1, reason: str = "Error", message: str = "", **changes: Any) -> PodView:
    """One that ended."""
    return pod(phase=PodPhase.FAILED, node="n", exit=Exit(code, reason, message, NOW), **changes)


NOT_READY: list[tuple[str, PodView]] = [
    (reasons.SCHEDULING, pod()),
    (reasons.UNSCHEDULABLE, pod(unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")),
    (reasons.CONTAINER_CREATING, pod(node="n", waiting="ContainerCreating")),
    (reasons.STUCK_CREATING, pod(node="n", waiting="ContainerCreating", bound_at=NOW - 121.0)),
    (reasons.PREPARING_DATA, pod(node="n", waiting="PodInitializing", bound_at=NOW - 500.0)),
    (reasons.IMAGE_PULL_BACK_OFF, pod(node="n", waiting="ErrImagePull", waiting_message="x: not found")),
    (reasons.IMAGE_PULL_BACK_OFF, pod(node="n", waiting="ImagePullBackOff")),
    (reasons.CREATE_CONTAINER_CONFIG_ERROR, pod(node="n", waiting="CreateContainerConfigError")),
    (reasons.CREATE_CONTAINER_ERROR, pod(node="n", waiting="RunContainerError")),
    (reasons.CRASH_LOOP_BACK_OFF, pod(node="n", waiting="CrashLoopBackOff")),
    (reasons.STARTING, pod(node="n", phase=PodPhase.RUNNING)),
    (reasons.TERMINATING, pod(node="n", phase=PodPhase.RUNNING, delete_by=NOW + 5.0)),
    (reasons.NODE_LOST, pod(node="n", phase=PodPhase.RUNNING, delete_by=NOW - 31.0)),
    (reasons.NODE_LOST, pod(node="n", phase=PodPhase.UNKNOWN)),
]
ENDS: list[tuple[str, Cause, PodView]] = [
    (reasons.EVICTED, Cause.DISRUPTION, failed(137, reason="Error", disruption="EvictionByEvictionAPI")),
    (reasons.EVICTED, Cause.DISRUPTION, pod(phase=PodPhase.FAILED, reason="Evicted")),
    (reasons.PREEMPTED, Cause.DISRUPTION, failed(disruption="PreemptionByScheduler")),
    (reasons.NODE_LOST, Cause.DISRUPTION, failed(disruption="DeletionByTaintManager")),
    (reasons.NODE_SHUTDOWN, Cause.DISRUPTION, pod(phase=PodPhase.FAILED, reason="Terminated")),
    (reasons.REFUSED_BY_NODE, Cause.DISRUPTION, pod(phase=PodPhase.FAILED, reason="UnexpectedAdmissionError")),
    (reasons.REFUSED_BY_NODE, Cause.DISRUPTION, pod(phase=PodPhase.FAILED, reason="OutOfnvidia.com/gpu")),
    (reasons.FENCED, Cause.FENCED, failed(75)),
    (reasons.OOM_KILLED, Cause.CHARGED, failed(137, "OOMKilled", memory_limit="8Gi")),
    (reasons.KILLED, Cause.CHARGED, failed(139)),
    (reasons.PROCESS_FAILED, Cause.CHARGED, failed(1, message='{"phase": "", "message": "no space left"}')),
    (reasons.PROCESS_FAILED, Cause.CHARGED, pod(phase=PodPhase.FAILED, reason="DeadlineExceeded")),
    (reasons.ENDED_EARLY, Cause.DONE, pod(phase=PodPhase.SUCCEEDED, exit=Exit(0))),
    (reasons.USER_ERROR, Cause.USER, failed(2, message="data.jsonl: line 3: no answer")),
]


@pytest.mark.parametrize(("reason", "view"), NOT_READY)
def test_a_pod_that_is_not_ready_says_why(reason: str, view: PodView) -> None:
    found = problem(view, NOW, TIMINGS)
    assert found is not None
    assert found.reason == reason
    assert view.name in found.message


def test_a_ready_pod_has_no_problem() -> None:
    assert problem(pod(node="n", phase=PodPhase.RUNNING, ready=True), NOW, TIMINGS) is None


@pytest.mark.parametrize(("reason", "cause", "view"), ENDS)
def test_an_ended_pod_has_one_verdict(reason: str, cause: Cause, view: PodView) -> None:
    judged = verdict(view)
    assert (judged.reason, judged.cause) == (reason, cause)
    assert view.name in judged.message


def test_a_memory_limit_is_named_with_the_field_to_raise() -> None:
    judged = verdict(failed(137, "OOMKilled", memory_limit="8Gi"))
    assert "8Gi" in judged.message
    assert "spec.trainer.resources.limits.memory" in judged.message


# -- in the course of a job ------------------------------------------------------------------------------------------


def said(todo: Plan) -> set[str]:
    """Reasons of the conditions and Events of a plan."""
    conditions = {condition.reason for condition in todo.status.conditions} if todo.status is not None else set()
    return conditions | {action.reason for action in todo.actions if isinstance(action, Record)}


def running() -> Observed:
    """A job with all parts ready."""
    lab = Laboratory({**SPEC, "steps": 100, "rollout": {"replicas": 3, "minReplicas": 2}})
    lab.settle()
    lab.clock.now += 60.0
    observed = lab.operator.observe()
    assert observed is not None
    assert observed.progress is not None
    return observed


def with_progress(**changes: Any) -> Observed:
    """The same, where the scheduler says something else."""
    observed = running()
    assert observed.progress is not None
    return replace(observed, progress=replace(observed.progress, at=observed.now, **changes))


def with_failure(kind: FailureKind, key: str = "create Pod demo-rollout-2", count: int = 3) -> Observed:
    """The same, where the last replica is missing and cannot be made, or something else cannot be done."""
    observed = running()
    verb = {"create": "create", "set": "set"}[key.partition(" ")[0]]
    failure = Failure(key, kind, verb, "pods", "demo-rollout-2", "said the server", observed.now, count)
    return replace(observed, pods=observed.pods[:2] + observed.pods[3:], failures=(failure,), live_set={})


def without(role: str) -> Observed:
    """The same without the pods of a role."""
    observed = running()
    return replace(observed, pods=tuple(pod for pod in observed.pods if pod.role != role))


def changed(role: str, **changes: Any) -> Observed:
    """The same, where the pods of a role are other than they were."""
    observed = running()
    pods = tuple(replace(pod, **changes) if pod.role == role else pod for pod in observed.pods)
    return replace(observed, pods=pods)


def suspended(**changes: Any) -> Observed:
    """The same, which shall be suspended."""
    observed = running()
    assert observed.job.spec is not None
    spec = observed.job.spec.model_copy(update={"suspend": True, **changes})
    return replace(observed, job=replace(observed.job, spec=spec))


def resumed() -> Observed:
    """The same, suspended before."""
    observed = replace(suspended(), pods=())
    todo = plan(observed)
    assert todo.status is not None
    spec = running().job.spec
    return replace(observed, job=replace(observed.job, status=todo.status, spec=spec))


def scaled(replicas: int) -> Observed:
    """The same, where another number of replicas is asked for."""
    observed = running()
    assert observed.job.spec is not None
    rollout = observed.job.spec.rollout.model_copy(update={"replicas": replicas})
    spec = observed.job.spec.model_copy(update={"rollout": rollout})
    return replace(observed, job=replace(observed.job, spec=spec))


def fresh() -> Observed:
    """A job that nobody has looked at."""
    observed = Laboratory().operator.observe()
    assert observed is not None
    return observed


def begun(**changes: Any) -> Observed:
    """A job whose pods are all ready for the first time."""
    lab = Laboratory()
    lab.settle()
    observed = lab.operator.observe()
    assert observed is not None
    return replace(observed, job=replace(observed.job, status=fresh().job.status), **changes)


def ended(word: str) -> Observed:
    """The same, where the scheduler has ended with a word."""
    return changed("scheduler", phase=PodPhase.SUCCEEDED, exit=Exit(0, "Completed", word, NOW))


def late(field: str) -> Observed:
    """The same with a deadline of ten seconds, an hour later."""
    observed = running()
    assert observed.job.spec is not None
    spec = observed.job.spec.model_copy(update={field: 10})
    return replace(observed, now=observed.now + 3600.0, job=replace(observed.job, spec=spec))


def pending_too_long() -> Observed:
    """A job that has a deadline to get ready, and is past it."""
    observed = fresh()
    assert observed.job.spec is not None
    spec = observed.job.spec.model_copy(update={"pending_deadline_seconds": 10})
    return replace(observed, now=observed.now + 60.0, job=replace(observed.job, spec=spec))


def behind() -> Observed:
    """The same, where a replica holds old weights."""
    return with_progress(published=90, replicas=(ReplicaProgress("rollout-0", 80),))


IN_THE_COURSE: list[tuple[str, Callable[[], Observed]]] = [
    (reasons.ACCEPTED, fresh),
    (reasons.INVALID_SPEC, lambda: replace(fresh(), refusal=Refusal(reasons.INVALID_SPEC, "steps: no"))),
    (reasons.NO_VOLUME, lambda: replace(fresh(), refusal=Refusal(reasons.NO_VOLUME, "no claim"))),
    (reasons.CREATING, fresh),
    (reasons.ADMITTED, begun),
    (reasons.QUOTA_EXCEEDED, lambda: with_failure(FailureKind.QUOTA)),
    (reasons.MISSING_RIGHTS, lambda: with_failure(FailureKind.FORBIDDEN)),
    (reasons.ADMISSION_DENIED, lambda: with_failure(FailureKind.DENIED)),
    (reasons.INVALID_OBJECT, lambda: with_failure(FailureKind.INVALID)),
    (reasons.NAME_TAKEN, lambda: with_failure(FailureKind.NAME_TAKEN)),
    (reasons.NAMESPACE_TERMINATING, lambda: with_failure(FailureKind.NAMESPACE_TERMINATING)),
    (reasons.API_UNAVAILABLE, lambda: with_failure(FailureKind.UNAVAILABLE)),
    (reasons.LIVE_VALUE_REFUSED, lambda: refused_value()),
    (reasons.PODS_READY, begun),
    (reasons.EXTERNAL, lambda: external()),
    (reasons.STORE_UNAVAILABLE, lambda: failing_store()),
    (reasons.NOT_CREATED, fresh),
    (reasons.WAITING_FOR_TRAINER, fresh),
    (reasons.SCHEDULER_SILENT, lambda: silent()),
    (reasons.TRAINER_NOT_REGISTERED, lambda: with_progress(trainer_registered=False)),
    (reasons.TRAINING_DONE, lambda: trained()),
    (reasons.TOO_FEW_REPLICAS, lambda: changed("rollout", ready=False)),
    (reasons.FEWER_REPLICAS, lambda: scaled(4)),
    (reasons.POD_DELETED, lambda: without("scheduler")),
    (reasons.NOT_KNOWN, fresh),
    (reasons.NOT_PUBLISHED, lambda: with_progress(published=None)),
    (reasons.REPLICAS_BEHIND, behind),
    (reasons.IN_SYNC, begun),
    (reasons.READY, begun),
    (reasons.STEPPING, begun),
    (reasons.STALLED, lambda: replace(running(), now=running().now + 3600.0)),
    (reasons.FINISHING, lambda: with_progress(phase="Complete")),
    (reasons.SUSPENDING, suspended),
    (reasons.SUSPENDED, lambda: replace(suspended(), pods=())),
    (reasons.RESUMED, resumed),
    (reasons.NOT_SUSPENDED, fresh),
    (reasons.AS_WANTED, fresh),
    (reasons.NOT_ENDED, fresh),
    (reasons.JOB_ENDED, lambda: ended('{"phase": "Complete"}')),
    (reasons.STEPS_DONE, lambda: ended('{"phase": "Complete"}')),
    (reasons.TRAINING_FAILED, lambda: ended('{"phase": "Failed", "reason": "too many failed tickets"}')),
    (reasons.BACKOFF_LIMIT_EXCEEDED, lambda: no_budget()),
    (reasons.PENDING_DEADLINE_EXCEEDED, pending_too_long),
    (reasons.ACTIVE_DEADLINE_EXCEEDED, lambda: late("active_deadline_seconds")),
    (reasons.STALL_DEADLINE_EXCEEDED, lambda: late("stall_deadline_seconds")),
    (reasons.SCALED_UP, lambda: scaled(4)),
    (reasons.SCALED_DOWN, lambda: scaled(2)),
    (reasons.TRAINER_REPLACED, lambda: changed("trainer", phase=PodPhase.FAILED, exit=Exit(1))),
    (reasons.FORCE_DELETED, lambda: changed("rollout", delete_by=NOW)),
]


def refused_value() -> Observed:
    """The scheduler refuses a number of steps."""
    observed = running()
    failure = Failure("set steps", FailureKind.REFUSED, "set", "scheduler", "steps", "too late", observed.now)
    return replace(observed, failures=(failure,), live_set={"steps": 7})


def external() -> Observed:
    """A job with a store of its user's."""
    observed = fresh()
    assert observed.job.spec is not None
    stream = observed.job.spec.stream.model_copy(update={"url": "redis://redis:6379"})
    spec = observed.job.spec.model_copy(update={"stream": stream})
    return replace(observed, job=replace(observed.job, spec=spec))


def failing_store() -> Observed:
    """A store that fails over (case X6)."""
    observed = running()
    assert observed.progress is not None
    return replace(observed, progress=replace(observed.progress, store_failing=True))


def silent() -> Observed:
    """A scheduler that does not answer."""
    observed = running()
    return replace(observed, unanswered_since=observed.now - 31.0)


def trained() -> Observed:
    """All steps are done and the trainer has ended; the last weights are evaluated."""
    observed = changed("trainer", phase=PodPhase.SUCCEEDED, ready=False, exit=Exit(0))
    assert observed.progress is not None
    return replace(observed, progress=replace(observed.progress, steps_done=100, steps_total=100))


def no_budget() -> Observed:
    """A scheduler that may not fail once, and did."""
    observed = changed("scheduler", phase=PodPhase.FAILED, exit=Exit(1))
    assert observed.job.spec is not None
    policy = observed.job.spec.scheduler.restart_policy.model_copy(update={"max_restarts": 0})
    scheduler = observed.job.spec.scheduler.model_copy(update={"restart_policy": policy})
    spec = observed.job.spec.model_copy(update={"scheduler": scheduler})
    return replace(observed, job=replace(observed.job, spec=spec))


@pytest.mark.parametrize(("reason", "scene"), IN_THE_COURSE, ids=[reason for reason, _ in IN_THE_COURSE])
def test_a_job_says_it_in_its_course(reason: str, scene: Callable[[], Observed]) -> None:
    todo = plan(scene())
    assert reason in said(todo), todo
    known = reasons.documented()
    assert said(todo) <= set(known)


def test_every_documented_reason_is_said_by_something() -> None:
    tables = {r for r, _ in NOT_READY} | {r for r, _, _ in ENDS} | {r for r, _ in IN_THE_COURSE}
    assert tables == set(reasons.documented())


def test_reasons_are_words_for_programs_and_have_sentences_for_people() -> None:
    for name, text in reasons.documented().items():
        assert name.isalpha()
        assert name[0].isupper()
        assert text.endswith(".")


def test_progress_of_another_kind_than_expected_is_no_trouble() -> None:
    observed = replace(running(), progress=Progress(at=0.0, phase="SomethingNew"))
    assert plan(observed).status is not None
