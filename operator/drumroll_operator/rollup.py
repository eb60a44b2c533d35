"""The conditions that sum up: Accepted and Admitted, Ready, Progressing, Suspended, Degraded, Complete and Failed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from drumroll.api.status import Condition
from drumroll_operator import reasons
from drumroll_operator.conditions import PARTS, Said, find, held
from drumroll_operator.endings import Ending
from drumroll_operator.moments import seconds
from drumroll_operator.observed import Failure, FailureKind
from drumroll_operator.parts import Scene, problems, ready_rollouts, taken
from drumroll_operator.replacing import finishing
from drumroll_operator.stopping import stopped
from drumroll_operator.substrate import ROLES
from drumroll_operator.texts import clean

_REASONS = {
    FailureKind.QUOTA: reasons.QUOTA_EXCEEDED,
    FailureKind.FORBIDDEN: reasons.MISSING_RIGHTS,
    FailureKind.DENIED: reasons.ADMISSION_DENIED,
    FailureKind.INVALID: reasons.INVALID_OBJECT,
    FailureKind.NAME_TAKEN: reasons.NAME_TAKEN,
    FailureKind.NAMESPACE_TERMINATING: reasons.NAMESPACE_TERMINATING,
    FailureKind.UNAVAILABLE: reasons.API_UNAVAILABLE,
    FailureKind.REFUSED: reasons.LIVE_VALUE_REFUSED,
}
_WRITES = ("create", "patch", "apply")
_PASSING = {FailureKind.CONFLICT: 1_000, FailureKind.UNAVAILABLE: 3}
"""Failures in a row before one of these is worth a word."""


@dataclass(frozen=True, slots=True)
class Tries:
    """How the wanted actions fare."""

    failures: tuple[Failure, ...] = ()
    """Of wanted actions that have failed and not succeeded since, the most important first."""
    pending: bool = False
    """Objects are about to be created or applied."""


def accepted() -> Said:
    """The job is rendered."""
    return Said("Accepted", "True", reasons.ACCEPTED)


def admitted(scene: Scene, tries: Tries) -> Said:
    """What the API server says of creating and applying."""
    for failure in tries.failures:
        if failure.verb in _WRITES and _counts(failure):
            return Said("Admitted", "False", _REASONS[failure.kind], explain(failure))
    blocked = _blocked_names(scene)
    if blocked:
        return Said("Admitted", "False", reasons.NAME_TAKEN, taken(blocked[0]))
    if tries.pending:
        return held(scene.old, "Admitted", Said("Admitted", "Unknown", reasons.CREATING))
    return Said("Admitted", "True", reasons.ADMITTED)


def _counts(failure: Failure) -> bool:
    return failure.count >= _PASSING.get(failure.kind, 1)


def _blocked_names(scene: Scene) -> list[str]:
    own = {pod.name for pod in scene.census.own}
    return sorted(name for name in scene.census.foreign if name not in own)


def explain(failure: Failure) -> str:
    """A failure as a sentence: for missing rights the verb and the resource, else the server's words."""
    said = clean(failure.message)
    if failure.kind is FailureKind.FORBIDDEN:
        return f"the operator may not {failure.verb} {failure.resource} ({failure.name}): {said}"
    return f"{failure.verb} {failure.resource} {failure.name}: {said}"


def ready(said: Sequence[Said]) -> Said:
    """The sum of the parts; where it is false, with the reason that explains most."""
    by_type = {one.type: one for one in said}
    missing = [by_type[part] for part in PARTS if not by_type[part].true]
    if not missing:
        return Said("Ready", "True", reasons.READY)
    refused = by_type.get("Admitted")
    first = refused if refused is not None and refused.status == "False" else missing[0]
    return Said("Ready", "False", first.reason, first.message or first.type)


def progressing(scene: Scene, *, running: bool, last_progress: datetime | None) -> Said:
    """Whether steps or samples come in."""
    progress = scene.observed.progress
    if progress is not None and finishing(progress):
        return Said("Progressing", "True", reasons.FINISHING, clean(progress.reason))
    if not running or last_progress is None:
        return Said("Progressing", "False", reasons.STARTING)
    window = scene.timings.progressing_s
    if scene.observed.now < seconds(last_progress) + window:
        return Said("Progressing", "True", reasons.STEPPING)
    return Said("Progressing", "False", reasons.STALLED, f"no step and no sample for over {window:.0f} s")


def suspended(scene: Scene) -> Said:
    """For a job whose spec says suspend, and for one that goes on."""
    if scene.wanted.suspend:
        if stopped(scene.census):
            return Said("Suspended", "True", reasons.SUSPENDED)
        # Unknown, so that going on is a change of its own, with a time: deadlines are counted from it.
        return Said("Suspended", "Unknown", reasons.SUSPENDING, "pods hand back, write a checkpoint and go")
    old = find(scene.old, "Suspended")
    if old is not None and (old.status != "False" or old.reason == reasons.RESUMED):
        return Said("Suspended", "False", reasons.RESUMED)
    return Said("Suspended", "False", reasons.NOT_SUSPENDED)


def degraded(scene: Scene, said: Sequence[Said], tries: Tries, *, running: bool) -> Said:
    """The gravest thing that is wrong."""
    by_type = {one.type: one for one in said}
    refused = by_type.get("Admitted")
    if refused is not None and refused.status == "False":
        return Said("Degraded", "True", refused.reason, refused.message)
    if by_type["SchedulerReady"].reason == reasons.SCHEDULER_SILENT:
        return Said("Degraded", "True", reasons.SCHEDULER_SILENT, by_type["SchedulerReady"].message)
    for role in ROLES:
        grave = [p for p in problems(scene, role) if p.grave]
        if grave:
            return Said("Degraded", "True", grave[0].reason, grave[0].message)
    for failure in tries.failures:
        if failure.verb not in _WRITES and _counts(failure):
            return Said("Degraded", "True", _REASONS[failure.kind], explain(failure))
    count = len(ready_rollouts(scene.census))
    if running and not finishing(scene.observed.progress):
        if by_type["Progressing"].reason == reasons.STALLED:
            return Said("Degraded", "True", reasons.STALLED, by_type["Progressing"].message)
        if count < scene.wanted.rollouts:
            message = f"{count} of {scene.wanted.rollouts} replicas are ready"
            return Said("Degraded", "True", reasons.FEWER_REPLICAS, message)
    return Said("Degraded", "False", reasons.AS_WANTED)


def ends(ending: Ending | None) -> Iterable[Said]:
    """Complete and Failed; one of them is true after the end."""
    if ending is None:
        return (Said("Complete", "False", reasons.NOT_ENDED), Said("Failed", "False", reasons.NOT_ENDED))
    if ending.complete:
        return (
            Said("Complete", "True", ending.reason, ending.message),
            Said("Failed", "False", reasons.JOB_ENDED),
        )
    return (Said("Complete", "False", reasons.JOB_ENDED), Said("Failed", "True", ending.reason, ending.message))


def resumed_at(old: Iterable[Condition]) -> float | None:
    """When the job was last resumed; None: it has never been suspended."""
    suspended = find(old, "Suspended")
    if suspended is None or suspended.reason != reasons.RESUMED:
        return None
    return seconds(suspended.last_transition_time)
