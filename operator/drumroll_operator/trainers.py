"""The trainer's pods are one set: made together, and if one of them ends, replaced together. Never two sets at once.

Sets are numbered in the status and on their pods. A number is given up in the status before anything of its set is
deleted, and a pod is only made when no pod of another set is left; so a crash between any two actions mixes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from drumroll_operator.actions import Action, CreatePod, DeletePod
from drumroll_operator.budget import Budgets, Charge
from drumroll_operator.census import Census
from drumroll_operator.labels import pod_name
from drumroll_operator.observed import PodView, Progress
from drumroll_operator.replacing import Course, Judged, judge, replace_at
from drumroll_operator.timings import Timings
from drumroll_operator.wanted import Wanted


@dataclass(frozen=True, slots=True)
class TrainerSet:
    """The state of the current set, before anything is done about it."""

    number: int
    """Of the set that is wanted: one more than before where that one broke."""
    standing: int
    """Live pods of it; in the status this says later whether a missing pod was ever there."""
    broken: bool
    """The set has just lost a member: its number is given up."""
    done: bool
    """All its pods have ended as they should."""
    charges: tuple[Charge, ...] = ()
    waits: tuple[float, ...] = ()
    why: str = ""
    """For a broken set: what happened."""


def judge_set(
    census: Census, *, number: int, standing: int, wanted: Wanted, progress: Progress | None, timings: Timings
) -> TrainerSet:
    """`number` and `standing` are the status's. A set that was seen whole and lacks a pod has lost it."""
    pods = census.of_role("trainer")
    number = max([1, number, *(pod.set_number for pod in pods)])
    members = [pod for pod in pods if pod.set_number == number]
    ended = [judge(pod, progress, timings) for pod in members if pod.ended and not pod.deleting]
    leaving = [pod for pod in members if pod.deleting]
    live = [pod for pod in members if pod.live]
    if ended and not leaving and all(judged.course is Course.LEAVE for judged in ended):
        return TrainerSet(number, len(live), broken=False, done=not live)
    bad = [judged for judged in ended if judged.course in (Course.FREE, Course.CHARGE)]
    lost = standing >= wanted.trainers > len(members) > 0
    if not bad and not leaving and not lost:
        waits = tuple(judged.until for judged in ended if judged.until is not None)
        return TrainerSet(number, len(live), broken=False, done=False, waits=waits)
    cause = min(bad, key=lambda judged: (judged.pod.ended_at, judged.pod.index), default=None)
    # Pods that follow a lost or leaving one into its end are not to blame.
    charged = cause is not None and cause.course is Course.CHARGE and not leaving and not lost
    charges = (Charge(cause.pod, cause.verdict),) if cause is not None and charged else ()
    return TrainerSet(number + 1, 0, broken=True, done=False, charges=charges, why=_why(cause, leaving))


def _why(cause: Judged | None, leaving: Sequence[PodView]) -> str:
    if leaving:
        return f"{leaving[0].name} is being deleted"
    return cause.verdict.message if cause is not None else "a pod of the set is gone"


def set_actions(
    census: Census, trainers: TrainerSet, budgets: Budgets, *, wanted: Wanted, now: float, timings: Timings
) -> tuple[list[Action], list[float]]:
    """(actions, times when more is due): first all of earlier sets goes, then the missing pods of this one are made."""
    old = [pod for pod in census.of_role("trainer") if pod.set_number < trainers.number]
    if old:
        return _remove(old, budgets, wanted=wanted, now=now, timings=timings)
    if trainers.done:
        return [], []
    present = {pod.index for pod in census.of_role("trainer")}
    creates: list[Action] = []
    for index in range(wanted.trainers):
        name = pod_name(census.job, "trainer", index)
        if index not in present and name not in census.foreign:
            creates.append(CreatePod("trainer", index, name, trainers.number))
    return creates, []


def _remove(
    old: Sequence[PodView], budgets: Budgets, *, wanted: Wanted, now: float, timings: Timings
) -> tuple[list[Action], list[float]]:
    actions: list[Action] = []
    later: list[float] = []
    alone = len(old) == 1
    for pod in old:
        if pod.deleting:
            continue
        at = _removable_at(pod, budgets, wanted, timings) if pod.ended else now
        if at > now:
            later.append(at)
        else:
            grace = None if alone or pod.ended else timings.broken_set_grace_s
            actions.append(DeletePod(pod.name, pod.uid, grace))
    return actions, later


def _removable_at(pod: PodView, budgets: Budgets, wanted: Wanted, timings: Timings) -> float:
    """No progress is needed: the set has been judged, and what it did not pay for was free."""
    at = replace_at(judge(pod, None, timings), budgets, wanted, timings)
    return pod.ended_at if at is None else at


def bound(census: Census, trainers: TrainerSet, wanted: Wanted) -> bool:
    """All trainer pods have a node, or need none any more: replicas may be made."""
    placed = [p for p in census.of_role("trainer") if p.live and p.node and p.set_number == trainers.number]
    return trainers.done or len(placed) >= wanted.trainers
