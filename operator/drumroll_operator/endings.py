"""When a job is over, and how. The scheduler's own word comes first; then users' errors, spent budgets and deadlines.

Terminal states latch: once the status says Complete or Failed, nothing here is asked again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from drumroll.api.status import RLJobStatus
from drumroll_operator import reasons
from drumroll_operator.budget import Budgets
from drumroll_operator.census import Census
from drumroll_operator.moments import seconds
from drumroll_operator.observed import Lag, PodPhase, Progress
from drumroll_operator.replacing import ENDED_PHASES, finishing
from drumroll_operator.texts import json_object, last_words
from drumroll_operator.verdicts import Cause, verdict
from drumroll_operator.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended."""

    complete: bool
    reason: str
    message: str
    last: Progress | None = None
    """The scheduler's last figures, where it said them."""


def latched(status: RLJobStatus) -> bool:
    """The job has ended, for good."""
    if status.phase in ENDED_PHASES:
        return True
    return any(c.type in ENDED_PHASES and c.status == "True" for c in status.conditions)


def scheduler_word(census: Census, progress: Progress | None) -> Ending | None:
    """What a scheduler that ended with everything archived said of the job; where its last words are lost, what it said
    when it was last asked."""
    pod = census.single("scheduler")
    if pod is None or pod.phase is not PodPhase.SUCCEEDED:
        return None
    message = pod.exit.message if pod.exit is not None else ""
    said = json_object(message)
    if said.get("phase") in ENDED_PHASES:
        return _ending(_last(said, str(said["phase"]), pod.ended_at), last_words(message))
    if progress is not None and finishing(progress):
        return _ending(progress, last_words(progress.reason))
    return None


def _ending(last: Progress, message: str) -> Ending:
    if last.phase == "Complete":
        return Ending(True, reasons.STEPS_DONE, message or f"all {last.steps_done} steps are done", last)
    return Ending(False, reasons.TRAINING_FAILED, message or "the scheduler ended the job", last)


def _last(said: Mapping[str, object], phase: str, at: float) -> Progress:
    """What the report says, as a last answer; what it lacks is 0."""
    given = said.get("lag")
    lag = given if isinstance(given, dict) else {}
    least, mean, most = (_number(lag.get(name)) for name in ("min", "mean", "max"))
    return Progress(
        at=at,
        phase=phase,
        steps_done=int(_number(said.get("step"))),
        steps_total=int(_number(said.get("steps"))),
        version=int(_number(said.get("version"))),
        samples=int(_number(said.get("samples"))),
        lag=Lag(int(least), mean, int(most)) if lag else None,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else 0.0


def user_error(census: Census, progress: Progress | None) -> Ending | None:
    """The first process that ended with the users' exit code; an ending job has its reason already."""
    if finishing(progress):
        return None
    ended = sorted((p for p in census.own if p.ended and not p.deleting), key=lambda pod: (pod.ended_at, pod.name))
    for pod in ended:
        judged = verdict(pod)
        if judged.cause is Cause.USER:
            return Ending(False, reasons.USER_ERROR, judged.message)
    return None


def spent_budget(budgets: Budgets, wanted: Wanted) -> Ending | None:
    """A role that failed too often."""
    entry = budgets.overdrawn(wanted)
    if entry is None:
        return None
    budget = wanted.budget(entry.role)
    per = f" for each of {wanted.rollouts} replicas" if entry.role == "rollout" and wanted.rollouts > 1 else ""
    return Ending(
        False,
        reasons.BACKOFF_LIMIT_EXCEEDED,
        f"{entry.role} failed {entry.count} times within {budget.window_s:.0f} s, and {budget.max_restarts}{per} are "
        f"borne. The last: {entry.last_reason}: {entry.last_message}",
    )


@dataclass(frozen=True, slots=True)
class Deadline:
    """One of the job's deadlines, running."""

    at: float
    ending: Ending


def deadlines(status: RLJobStatus, *, created: float, resumed: float | None, wanted: Wanted) -> list[Deadline]:
    """Those that run now; `resumed`: when the job was last resumed. A suspended job has none."""
    running: list[Deadline] = []
    begin = created if resumed is None else resumed
    if status.phase == "Running":
        if wanted.stall_s is not None and status.last_progress_time is not None:
            at = seconds(status.last_progress_time) + wanted.stall_s
            said = f"no step and no sample for {wanted.stall_s:.0f} s (stallDeadlineSeconds); {status.message or ''}"
            running.append(Deadline(at, Ending(False, reasons.STALL_DEADLINE_EXCEEDED, said.rstrip("; "))))
    elif wanted.pending_s is not None:
        said = f"not ready within {wanted.pending_s:.0f} s (pendingDeadlineSeconds); {status.message or ''}"
        ending = Ending(False, reasons.PENDING_DEADLINE_EXCEEDED, said.rstrip("; "))
        running.append(Deadline(begin + wanted.pending_s, ending))
    if wanted.active_s is not None and status.start_time is not None:
        at = seconds(status.start_time) + (status.suspended_seconds or 0) + wanted.active_s
        said = f"ran longer than {wanted.active_s:.0f} s (activeDeadlineSeconds)"
        running.append(Deadline(at, Ending(False, reasons.ACTIVE_DEADLINE_EXCEEDED, said)))
    return running
