"""What is to be done about a pod that has ended: leave it, wait, charge it, or replace it free of charge."""

from dataclasses import dataclass
from enum import StrEnum

from drumroll_operator.budget import Budgets
from drumroll_operator.observed import PodView, Progress
from drumroll_operator.timings import Timings
from drumroll_operator.verdicts import Cause, Verdict, verdict
from drumroll_operator.wanted import Wanted

ENDED_PHASES = ("Complete", "Failed")


class Course(StrEnum):
    """What becomes of an ended pod."""

    LEAVE = "leave"
    """It ended as it should: the job ends too."""
    WAIT = "wait"
    """It says that it is done: the scheduler is given time to say so too."""
    FREE = "free"
    CHARGE = "charge"


@dataclass(frozen=True, slots=True)
class Judged:
    """An ended pod and its course."""

    pod: PodView
    verdict: Verdict
    course: Course
    until: float | None = None
    """For WAIT: when the waiting is over, as far as time alone decides it."""


def finishing(progress: Progress | None) -> bool:
    """The scheduler says that the job is over; it ends once everything is archived."""
    return progress is not None and progress.phase in ENDED_PHASES


def trained(progress: Progress | None) -> bool:
    """All steps are done: trainers may end."""
    return finishing(progress) or (progress is not None and 0 < progress.steps_total <= progress.steps_done)


def judge(pod: PodView, progress: Progress | None, timings: Timings) -> Judged:
    """The course of an ended pod of any role; a user's error counts as charged here: endings take it before."""
    judged = verdict(pod)
    if pod.role in ("trainer", "rollout") and finishing(progress):
        return Judged(pod, judged, Course.LEAVE)
    if judged.free:
        return Judged(pod, judged, Course.FREE)
    if judged.cause is not Cause.DONE or pod.role in ("store", "scheduler"):
        return Judged(pod, judged, Course.CHARGE)
    if pod.role == "trainer" and trained(progress):
        return Judged(pod, judged, Course.LEAVE)
    until = pod.ended_at + timings.finish_s
    heard = progress.at if progress is not None else 0.0
    if heard < until:
        return Judged(pod, judged, Course.WAIT, until)
    return Judged(pod, judged, Course.CHARGE)


def replace_at(judged: Judged, budgets: Budgets, wanted: Wanted, timings: Timings) -> float | None:
    """When its object is deleted, so that its name is free for the next; None: not by time alone."""
    pod = judged.pod
    if budgets.charged(pod):
        return pod.ended_at + budgets.delay_s(pod.role or "trainer", wanted, timings)
    if judged.course is not Course.FREE:
        return None
    short = pod.ended_at < pod.created + timings.short_life_s
    return pod.ended_at + (timings.short_life_delay_s if short else 0.0)
