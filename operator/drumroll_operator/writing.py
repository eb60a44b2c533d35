"""When a changed status is written: at once where a decision hangs on it, else no more often than every ten seconds."""

from drumroll.api.status import Condition, RLJobStatus, TrainerStatus

_AT_ONCE = (
    "observed_generation",
    "phase",
    "restarts",
    "config",
    "job_dir",
    "start_time",
    "end_time",
    "suspended_seconds",
)


def urgent(old: RLJobStatus, new: RLJobStatus) -> bool:
    """More than progress has changed: conditions, the phase, what a later plan relies on."""
    if any(getattr(old, name) != getattr(new, name) for name in _AT_ONCE):
        return True
    return _truths(old) != _truths(new) or _set(old.trainer) != _set(new.trainer)


def _truths(status: RLJobStatus) -> list[tuple[str, str, str]]:
    return [_truth(condition) for condition in status.conditions]


def _truth(condition: Condition) -> tuple[str, str, str]:
    return condition.type, condition.status, condition.reason


def _set(trainer: TrainerStatus | None) -> tuple[int, int]:
    return (0, 0) if trainer is None else (trainer.set_number, trainer.replicas)


def write_at(old: RLJobStatus, new: RLJobStatus, *, now: float, written: float | None, every_s: float) -> float | None:
    """When the new status is to be written; None: it says nothing new."""
    if old == new:
        return None
    if urgent(old, new) or written is None:
        return now
    return max(now, written + every_s)
