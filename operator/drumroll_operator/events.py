"""Events about a job: one for each change that people want to hear of, none for what stays as it is."""

from collections.abc import Iterable
from typing import Literal

from drumroll.api.status import Condition, RLJobStatus, RoleRestarts
from drumroll_operator import reasons
from drumroll_operator.actions import Action, DeletePod, Record
from drumroll_operator.census import Census
from drumroll_operator.conditions import PARTS, find
from drumroll_operator.problems import overdue
from drumroll_operator.texts import event_note, names
from drumroll_operator.timings import Timings
from drumroll_operator.verdicts import verdict

_GOOD = {"Ready": reasons.READY, "Suspended": reasons.SUSPENDED, "Complete": reasons.STEPS_DONE}
_LOST = (reasons.POD_DELETED, reasons.STORE_UNAVAILABLE)
_BAD_WHEN_FALSE = ("Accepted", "Admitted")
_BAD_WHEN_TRUE = ("Degraded", "Failed")


def change_events(old: RLJobStatus, new: RLJobStatus, *, why_new_set: str = "") -> list[Record]:
    """From the difference of two statuses; written with the new one, so that each comes once."""
    events = [record for condition in new.conditions for record in _of(find(old.conditions, condition.type), condition)]
    spent = {entry.role: entry for entry in old.restarts}
    events += [_charged(entry) for entry in new.restarts if entry != spent.get(entry.role)]
    before = old.trainer.set_number if old.trainer is not None else 0
    if new.trainer is not None and new.trainer.set_number > before > 0:
        events.append(_record("Warning", reasons.TRAINER_REPLACED, why_new_set))
    wanted = _asked(old), _asked(new)
    if 0 < wanted[0] < wanted[1]:
        events.append(_record("Normal", reasons.SCALED_UP, f"from {wanted[0]} to {wanted[1]} replicas"))
    return _unique(events)


def _asked(status: RLJobStatus) -> int:
    """Replicas that were asked for, of the summary ready/asked."""
    asked = status.rollout.summary.partition("/")[2] if status.rollout is not None else ""
    return int(asked) if asked.isdigit() else 0


def _of(old: Condition | None, new: Condition) -> Iterable[Record]:
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return
    message = new.message or reasons.documented().get(new.reason, "")
    if new.type in _GOOD and new.status == "True":
        yield _record("Normal", _GOOD[new.type], message)
    elif new.type == "Suspended" and new.reason == reasons.RESUMED:
        yield _record("Normal", reasons.RESUMED, message)
    elif (
        (new.type in PARTS and new.reason in _LOST)
        or (new.type in _BAD_WHEN_FALSE and new.status == "False")
        or (new.type in _BAD_WHEN_TRUE and new.status == "True")
    ):
        yield _record("Warning", new.reason, message)


def _charged(entry: RoleRestarts) -> Record:
    return _record("Warning", entry.last_reason, f"{entry.last_message} ({entry.count} in this window)")


def action_events(actions: Iterable[Action], census: Census, now: float, timings: Timings) -> list[Record]:
    """Why pods go: free ends, by force, or one too many."""
    own = {pod.uid: pod for pod in census.own}
    events: list[Record] = []
    victims: list[str] = []
    for action in actions:
        pod = own.get(action.uid) if isinstance(action, DeletePod) else None
        if pod is None:
            continue
        if overdue(pod, now, timings):
            said = f"{pod.name} was still there long after its grace: deleted by force"
            events.append(_record("Warning", reasons.FORCE_DELETED, said))
        elif pod.ended and verdict(pod).free:
            events.append(_record("Warning", verdict(pod).reason, f"{verdict(pod).message}; not charged"))
        elif pod.live and pod.role == "rollout":
            victims.append(pod.name)
    if victims:
        events.append(_record("Normal", reasons.SCALED_DOWN, f"{names(victims, most=10)} drain and go"))
    return _unique(events)


def _record(type_: Literal["Normal", "Warning"], reason: str, message: str) -> Record:
    return Record(type_, reason, event_note(message))


def _unique(events: Iterable[Record]) -> list[Record]:
    return list({(event.reason, event.message): event for event in events}.values())
