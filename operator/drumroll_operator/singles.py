"""The parts that have one pod: the store and the scheduler. Ended ones are replaced, missing ones are made."""

from dataclasses import dataclass

from drumroll_operator.actions import Action, CreatePod, DeletePod
from drumroll_operator.budget import Budgets, Charge
from drumroll_operator.census import Census
from drumroll_operator.labels import pod_name
from drumroll_operator.observed import Progress
from drumroll_operator.replacing import Course, Judged, judge, replace_at
from drumroll_operator.substrate import Role
from drumroll_operator.timings import Timings
from drumroll_operator.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Single:
    """An ended pod of such a part, or none."""

    role: Role
    judged: Judged | None

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Its end, if it is to be paid for."""
        judged = self.judged
        if judged is None or judged.course is not Course.CHARGE:
            return ()
        return (Charge(judged.pod, judged.verdict),)


def judge_single(role: Role, census: Census, progress: Progress | None, timings: Timings) -> Single:
    """Look at it. A pod that is being deleted is left to its deletion."""
    pod = census.single(role)
    ended = pod is not None and pod.ended and not pod.deleting
    return Single(role, judge(pod, progress, timings) if pod is not None and ended else None)


def single_actions(
    single: Single, census: Census, budgets: Budgets, *, wanted: Wanted, now: float, timings: Timings
) -> tuple[list[Action], list[float]]:
    """(actions, times when more is due)."""
    name = pod_name(census.job, single.role)
    if single.judged is not None:
        at = replace_at(single.judged, budgets, wanted, timings)
        if at is None:
            return [], []
        pod = single.judged.pod
        return ([DeletePod(pod.name, pod.uid)], []) if at <= now else ([], [at])
    taken = any(pod.name == name for pod in census.own) or name in census.foreign
    return ([] if taken else [CreatePod(single.role, 0, name)]), []
