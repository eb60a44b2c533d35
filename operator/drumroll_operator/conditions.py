"""The condition contract: which there are, what each says, and how one follows another without churn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from drumroll.api.status import Condition
from drumroll_operator import reasons
from drumroll_operator.moments import moment
from drumroll_operator.texts import condition_message

Truth = Literal["True", "False", "Unknown"]

CONDITIONS: dict[str, str] = {
    "Accepted": "The spec is valid and can be rendered into pods.",
    "Admitted": "The API server takes the job's objects: quota, rights and policies allow them.",
    "StreamReady": "The store runs, or is the user's own.",
    "SchedulerReady": "The scheduler is ready and answers.",
    "TrainerReady": "All trainer pods are ready, and the trainer is registered.",
    "RolloutReady": "At least minReplicas replicas are ready: model loaded, weights within the bound, not draining.",
    "WeightsInSync": "All ready replicas hold weights within the bound.",
    "Ready": "Accepted, StreamReady, SchedulerReady, TrainerReady, RolloutReady and WeightsInSync are true. "
    "When not, it has the reason of the first that is not.",
    "Progressing": "A step or a sample was made lately.",
    "Suspended": "spec.suspend is true and the job's pods are gone, but for the store.",
    "Degraded": "Something is wrong that does not pass by itself, or fewer replicas are ready than asked for; "
    "the job may go on.",
    "Complete": "All steps are trained, published and archived. Never becomes false again.",
    "Failed": "The job has ended before its last step. Never becomes false again.",
}
"""Types in the order in which a status lists them."""

PARTS = ("StreamReady", "SchedulerReady", "TrainerReady", "RolloutReady", "WeightsInSync")
_STEADY = (reasons.IMAGE_PULL_BACK_OFF,)


@dataclass(frozen=True, slots=True)
class Said:
    """What a condition says now."""

    type: str
    status: Truth
    reason: str
    message: str = ""

    @property
    def true(self) -> bool:
        return self.status == "True"


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type."""
    return next((condition for condition in conditions if condition.type == type_), None)


def held(conditions: Iterable[Condition], type_: str, otherwise: Said) -> Said:
    """What was said before, where nothing new is known."""
    old = find(conditions, type_)
    return otherwise if old is None else Said(type_, old.status, old.reason, old.message)


def follow(old: Sequence[Condition], said: Iterable[Said], *, generation: int, now: float) -> list[Condition]:
    """The next list: times change with the status alone; what is not said anew is dropped."""
    by_type = {condition.type: condition for condition in old}
    news = {one.type: one for one in said}
    return [_next(by_type.get(type_), news[type_], generation, now) for type_ in CONDITIONS if type_ in news]


def _next(old: Condition | None, said: Said, generation: int, now: float) -> Condition:
    message = condition_message(said.message)
    same = old is not None and old.status == said.status
    if old is not None and same and old.reason == said.reason:
        message = _steady(old, message)
        if old.message == message and old.observed_generation == generation:
            return old
    return Condition(
        type=said.type,
        status=said.status,
        reason=said.reason,
        message=message,
        last_transition_time=old.last_transition_time if old is not None and same else moment(now),
        observed_generation=generation,
    )


def _steady(old: Condition, message: str) -> str:
    """The kubelet words some causes in turns: of two words for one cause, the longer stays."""
    pod = message.partition(":")[0]
    if old.reason in _STEADY and old.message.partition(":")[0] == pod and len(old.message) >= len(message):
        return old.message
    return message
