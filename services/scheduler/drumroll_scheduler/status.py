"""What people see of a job: the answer to a status call, and the rows of metrics.jsonl. Pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from drumroll_planner import records as r
from drumroll_proto.v1 import journal_pb2, scheduler_pb2

from drumroll_scheduler.story import Story, TrainedStep
from drumroll_scheduler.translate import weights

_FIGURES = ("reward_mean", "reward_std", "response_length_mean")
STORE_FAILING = "store_failing_s"
"""Gauge of a status, there only while the store does not take what is written, and shortly afterwards."""
TICKET_STATES = ("planned", "leased", "streamed", "decided", "trained")


@dataclass(slots=True)
class Presence:
    """What a replica said of itself with its last heartbeat; gone after a restart until the next one."""

    heard_at: float
    """Monotonic seconds."""
    draining: bool = False
    gauges: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """All that a status is made of."""

    story: Story
    presence: Mapping[str, Presence]
    gauges: Mapping[str, float]
    """The policy's, and the shell's own."""
    steps_total: int
    now: float
    """Monotonic seconds."""
    trainer_heard_at: float | None


def phase_of(story: Story) -> str:
    """Starting, Running, Complete or Failed."""
    if story.ended is not None:
        return "Complete" if story.ended.outcome is r.JobOutcome.COMPLETE else "Failed"
    return "Running" if story.trainer_epoch and story.newest is not None else "Starting"


def reason_of(story: Story) -> str:
    """Why the job has ended, or what a starting job waits for; empty while it runs."""
    if story.ended is not None:
        return story.ended.reason
    if not story.trainer_epoch:
        return "waits for the trainer to register"
    if story.newest is None:
        return "waits for the first weights"
    return ""


def _last_wait(view: View) -> str:
    """What a job waits for whose steps are all done."""
    gauges, story = view.gauges, view.story
    evaluates = gauges.get("eval_samples_waiting", 0.0) + gauges.get("eval_leases_live", 0.0) > 0.0
    done = story.ended is None and story.steps_done >= view.steps_total
    return "evaluates the last weights" if evaluates and done else ""


def ticket_counts(gauges: Mapping[str, float]) -> dict[str, int]:
    """Tickets by state and by end."""
    states = {name: int(gauges.get(f"tickets_{name}", 0)) for name in TICKET_STATES}
    return states | {end.value: int(gauges.get(f"tickets_ended_{end}", 0)) for end in r.TicketEnd}


def replica_status(name: str, view: View) -> scheduler_pb2.ReplicaStatus:
    """One replica's part of the status."""
    replica, presence = view.story.replicas[name], view.presence.get(name)
    return scheduler_pb2.ReplicaStatus(
        name=name,
        instance=replica.instance,
        attested=replica.attested is not None,
        version=replica.attested or 0,
        leases=len(replica.leases),
        slots=replica.slots,
        draining=presence.draining if presence else False,
        silent_s=view.now - presence.heard_at if presence else 0.0,
        gauges=presence.gauges if presence else {},
    )


def step_status(step: TrainedStep) -> scheduler_pb2.StepStatus:
    """One trained step, with its lag among the figures."""
    stats = {**step.stats, **lag_columns(step)}
    return scheduler_pb2.StepStatus(step=step.step, version=step.version, lineage=step.lineage, stats=stats)


def status_reply(view: View) -> scheduler_pb2.StatusReply:
    """The answer to a status call, without its header."""
    story = view.story
    silent_s = view.now - view.trainer_heard_at if view.trainer_heard_at is not None else 0.0
    return scheduler_pb2.StatusReply(
        phase=phase_of(story),
        reason=reason_of(story) or _last_wait(view),
        steps_done=story.steps_done,
        steps_total=view.steps_total,
        steps_decided=story.steps_decided,
        version=story.version,
        lineage=story.lineage,
        covered_step=story.covered.step if story.covered else 0,
        newest=weights(story.newest),
        replicas=[replica_status(name, view) for name in sorted(story.replicas)],
        tickets=ticket_counts(view.gauges),
        gauges=dict(view.gauges),
        recent=[step_status(step) for step in story.recent],
        notes=[journal_pb2.Noted(reason=note.reason, message=note.message) for note in story.notes],
        trainer_registered=bool(story.trainer_epoch),
        trainer_silent_s=silent_s,
        live=story.live,
    )


def final_report(view: View) -> dict[str, Any]:
    """What is left of an ended job for whoever looks after its pods."""
    story = view.story
    lag = lag_columns(story.recent[-1]) if story.recent else {}
    return {
        "phase": phase_of(story),
        "reason": reason_of(story),
        "step": story.steps_done,
        "steps": view.steps_total,
        "version": story.version,
        "lag": {name.removeprefix("lag_"): value for name, value in lag.items()},
        "samples": int(view.gauges.get("accepted_count", 0.0)),
    }


def lag_columns(step: TrainedStep) -> dict[str, float]:
    """lag_min, lag_mean and lag_max of a step."""
    if step.lag is None:
        return {}
    return {"lag_min": step.lag.least, "lag_mean": step.lag.mean, "lag_max": step.lag.most}


def metrics_row(step: TrainedStep, gauges: Mapping[str, float]) -> dict[str, Any]:
    """A row of metrics.jsonl: one per trained step of the final story. `version` is the one that the step made."""
    return {
        "step": step.step,
        "version": step.version,
        "lineage": step.lineage,
        "time": step.time,
        **{name: _finite(value) for name, value in sorted(step.stats.items())},
        **lag_columns(step),
        **{f"queue_{name}": _finite(value) for name, value in sorted(gauges.items())},
    }


def evaluation_row(record: r.Evaluated, now: float) -> dict[str, Any]:
    """A row of eval.jsonl: the end of an evaluation round; figures are null where no answer was scored."""
    row: dict[str, Any] = {"time": now, **asdict(record)}
    return row if record.num_samples else row | dict.fromkeys(_FIGURES)


def evaluation_gauges(story: Story) -> dict[str, float]:
    """The newest evaluation that scored anything: mean reward, and the steps behind its version."""
    newest = story.evaluated_well
    return {} if newest is None else {"eval_step": float(newest.step), "eval_reward_mean": newest.reward_mean}


def missing_rows(story: Story, last_step: int) -> list[TrainedStep]:
    """Steps of the story that a crash kept from metrics.jsonl, whose last row is of `last_step`."""
    return [step for step in story.recent if step.step > last_step]


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
