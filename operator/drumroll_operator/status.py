"""The next status: a pure reduction of what was observed and decided. Steps and versions in it never go back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from drumroll.api.status import Condition, Phase, PolicyLag, RLJobStatus, RolloutStatus, TrainerStatus
from drumroll_operator import reasons, rollup
from drumroll_operator.budget import Budgets
from drumroll_operator.conditions import CONDITIONS, Said, find, follow, held
from drumroll_operator.endings import Ending
from drumroll_operator.labels import JOB, ROLE, UID
from drumroll_operator.moments import moment, seconds
from drumroll_operator.observed import Observed, PodPhase, Progress, Refusal
from drumroll_operator.parts import Scene, part_conditions, ready_rollouts
from drumroll_operator.rollup import Tries
from drumroll_operator.texts import condition_message


class Mode(StrEnum):
    """What the plan does with the job."""

    RUN = "run"
    SUSPEND = "suspend"
    END = "end"


@dataclass(frozen=True, slots=True)
class Decided:
    """What the plan has decided that the status must say."""

    mode: Mode
    budgets: Budgets
    ending: Ending | None = None
    tries: Tries = field(default_factory=Tries)


def next_status(scene: Scene, decided: Decided) -> RLJobStatus:
    """The whole status of a job that is looked after."""
    observed, old = scene.observed, scene.observed.job.status
    figures = _figures(scene, decided.ending)
    last_progress = _last_progress(scene, figures)
    if decided.ending is not None:
        said = _ended(scene, decided.ending)
        phase: Phase = "Complete" if decided.ending.complete else "Failed"
    elif decided.mode is Mode.SUSPEND:
        said, phase = _suspended(scene, decided), "Suspended"
    else:
        said, phase, last_progress = _running(scene, decided, last_progress)
    conditions = follow(old.conditions, said, generation=observed.job.generation, now=observed.now)
    return old.model_copy(
        update={
            **figures,
            "observed_generation": observed.job.generation,
            "phase": phase,
            "conditions": conditions,
            "restarts": decided.budgets.wire(),
            "trainer": _trainer(scene),
            "rollout": _rollout(scene),
            "gpus": sum(pod.gpus for pod in scene.census.own if not pod.ended),
            "config": observed.config or old.config,
            "job_dir": observed.job_dir or old.job_dir,
            "message": _message(conditions, decided, figures, old),
            "start_time": old.start_time or _started(scene),
            "end_time": old.end_time or (moment(observed.now) if decided.ending is not None else None),
            "last_progress_time": last_progress,
            "suspended_seconds": _suspended_seconds(scene, phase),
        }
    )


def refused_status(observed: Observed, refusal: Refusal) -> RLJobStatus:
    """Of a job that cannot be rendered: what was said before stays, beside the refusal."""
    old = observed.job.status
    keep = [held(old.conditions, type_, Said(type_, "Unknown", reasons.NOT_KNOWN)) for type_ in CONDITIONS]
    said = {one.type: one for one in keep if find(old.conditions, one.type) is not None}
    said |= {one.type: one for one in rollup.ends(None)}
    said["Accepted"] = Said("Accepted", "False", refusal.reason, refusal.message)
    said["Ready"] = Said("Ready", "False", refusal.reason, refusal.message)
    return old.model_copy(
        update={
            "observed_generation": observed.job.generation,
            "phase": old.phase or "Pending",
            "conditions": follow(old.conditions, said.values(), generation=observed.job.generation, now=observed.now),
            "message": condition_message(refusal.message),
        }
    )


def settled_status(scene: Scene) -> RLJobStatus:
    """Of a job that had ended before: its pods go, nothing else changes any more."""
    old, generation = scene.observed.job.status, scene.observed.job.generation
    said = [Said(c.type, c.status, c.reason, c.message) for c in old.conditions]
    return old.model_copy(
        update={
            "observed_generation": generation,
            "conditions": follow(old.conditions, said, generation=generation, now=scene.observed.now),
            "trainer": _trainer(scene),
            "rollout": _rollout(scene),
            "gpus": sum(pod.gpus for pod in scene.census.own if not pod.ended),
        }
    )


# -- conditions by mode ----------------------------------------------------------------------------------------------


def _running(
    scene: Scene, decided: Decided, last_progress: datetime | None
) -> tuple[list[Said], Phase, datetime | None]:
    """(conditions, phase, time of the last progress). Getting ready is progress too: stalling is counted from it."""
    said = [rollup.accepted(), rollup.admitted(scene, decided.tries), *part_conditions(scene)]
    said.append(rollup.ready(said))
    was_running = scene.observed.job.status.phase == "Running"
    running = was_running or said[-1].true
    if running and not was_running:
        last_progress = moment(scene.observed.now)
    said.append(rollup.progressing(scene, running=running, last_progress=last_progress))
    said.append(rollup.suspended(scene))
    said.append(rollup.degraded(scene, said, decided.tries, running=running))
    begun = any(pod.node for pod in scene.census.own)
    # Running is kept once the job was ready, until it is suspended: it says which deadlines run.
    phase: Phase = "Running" if running else "Starting" if begun else "Pending"
    return [*said, *rollup.ends(None)], phase, last_progress


def _suspended(scene: Scene, decided: Decided) -> list[Said]:
    suspended = rollup.suspended(scene)
    waiting = Said("Admitted", "Unknown", suspended.reason)
    said = [rollup.accepted(), held(scene.old, "Admitted", waiting), suspended]
    for type_ in ("StreamReady", "SchedulerReady", "TrainerReady", "RolloutReady", "WeightsInSync", "Ready"):
        said.append(Said(type_, "False", suspended.reason, suspended.message))
    failed = [f for f in decided.tries.failures if f.verb == "delete"]
    grave = Said("Degraded", "True", reasons.API_UNAVAILABLE, rollup.explain(failed[0])) if failed else None
    said.append(grave or Said("Degraded", "False", reasons.AS_WANTED))
    said.append(Said("Progressing", "False", suspended.reason))
    return [*said, *rollup.ends(None)]


def _ended(scene: Scene, ending: Ending) -> list[Said]:
    said = [held(scene.old, type_, Said(type_, "False", reasons.JOB_ENDED)) for type_ in ("Accepted", "Admitted")]
    for type_ in ("StreamReady", "SchedulerReady", "TrainerReady", "RolloutReady", "WeightsInSync"):
        said.append(Said(type_, "False", reasons.JOB_ENDED))
    said.append(Said("Ready", "False", ending.reason, ending.message))
    for type_ in ("Progressing", "Suspended", "Degraded"):
        said.append(Said(type_, "False", reasons.JOB_ENDED))
    return [*said, *rollup.ends(ending)]


# -- figures ---------------------------------------------------------------------------------------------------------


def _figures(scene: Scene, ending: Ending | None) -> dict[str, object]:
    """What the scheduler counts; nothing of it ever goes back."""
    progress, old = scene.observed.progress, scene.observed.job.status
    if ending is not None:
        return _last_figures(old, progress, ending)
    if progress is None:
        return {}
    step = max(progress.steps_done, old.step or 0)
    figures: dict[str, object] = {
        "step": step,
        "steps": progress.steps_total,
        "version": max(progress.version, old.version or 0),
        "samples": max(progress.samples, old.samples or 0),
        "eta_seconds": _eta(scene, step),
    }
    return figures | _lag(progress)


def _last_figures(old: RLJobStatus, progress: Progress | None, ending: Ending) -> dict[str, Any]:
    """From the scheduler's last word, else from its last answer."""
    figures: dict[str, Any] = {"eta_seconds": 0 if ending.complete else None}
    for heard in (progress, ending.last):
        if heard is None:
            continue
        for name, said in (("step", heard.steps_done), ("version", heard.version), ("samples", heard.samples)):
            figures[name] = max(said, figures.get(name, 0), getattr(old, name) or 0)
        if heard.steps_total:
            figures["steps"] = heard.steps_total
        figures |= _lag(heard)
    return figures


def _lag(progress: Progress) -> dict[str, object]:
    lag = progress.lag
    if lag is None:
        return {}
    return {"policy_lag": PolicyLag(min=lag.least, mean=round(lag.mean, 3), max=lag.most)}


def _eta(scene: Scene, step: int) -> int | None:
    """Seconds to the last step; reckoned anew when a step is done, so that time alone changes nothing."""
    progress, old = scene.observed.progress, scene.observed.job.status
    if progress is None or (step == old.step and progress.steps_total == old.steps):
        return old.eta_seconds
    if step == 0:
        return None
    pace = progress.seconds_per_step
    if pace is None and old.start_time is not None:
        pace = max(progress.at - seconds(old.start_time) - old.suspended_seconds, 0.0) / step
    return round(max(progress.steps_total - step, 0) * pace) if pace is not None else None


def _last_progress(scene: Scene, figures: dict[str, object]) -> datetime | None:
    progress, old = scene.observed.progress, scene.observed.job.status
    moved = any(figures.get(name, 0) != (getattr(old, name) or 0) for name in ("step", "samples", "version"))
    if progress is None or not figures or not moved:
        return old.last_progress_time
    known = old.last_progress_time
    at = moment(progress.at)
    return at if known is None or at > known else known


def _trainer(scene: Scene) -> TrainerStatus:
    members = [p for p in scene.census.of_role("trainer") if p.live and p.set_number == scene.trainers.number]
    ready = sum(pod.ready for pod in members)
    return TrainerStatus(replicas=len(members), ready=ready, set_number=scene.trainers.number)


def _rollout(scene: Scene) -> RolloutStatus:
    pods, job = scene.census.of_role("rollout"), scene.observed.job
    ready = len(ready_rollouts(scene.census))
    return RolloutStatus(
        replicas=sum(pod.live for pod in pods),
        ready=ready,
        draining=sum(pod.deleting for pod in pods),
        summary=f"{ready}/{scene.wanted.rollouts}",
        selector=f"{JOB}={job.name},{UID}={job.uid},{ROLE}=rollout",
    )


def _started(scene: Scene) -> datetime | None:
    begun = [pod.started or pod.created for pod in scene.census.own if pod.phase is not PodPhase.PENDING]
    return moment(min(begun)) if begun else None


def _suspended_seconds(scene: Scene, phase: Phase) -> float:
    """Added up when the job goes on."""
    old = scene.observed.job.status
    suspended = find(old.conditions, "Suspended")
    if phase == "Suspended" or suspended is None or suspended.status != "True":
        return old.suspended_seconds
    since = seconds(suspended.last_transition_time)
    return old.suspended_seconds + max(0.0, float(int(scene.observed.now)) - since)


def _message(conditions: Sequence[Condition], decided: Decided, figures: Mapping[str, object], old: RLJobStatus) -> str:
    if decided.ending is not None:
        return condition_message(decided.ending.message)
    by_type = {condition.type: condition for condition in conditions}
    if decided.mode is Mode.SUSPEND:
        return by_type["Suspended"].message or "suspended"
    if by_type["Ready"].status != "True":
        return by_type["Ready"].message
    if by_type["Progressing"].reason == reasons.FINISHING:
        return "all steps are done; the scheduler archives"
    step, steps = figures.get("step", old.step), figures.get("steps", old.steps)
    return f"{step} of {steps} steps are done" if steps else "runs"
