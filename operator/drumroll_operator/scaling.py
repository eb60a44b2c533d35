"""Rollout replicas: which are added, which go, which are replaced. Pure counting over indices.

Pods that still drain count until they are gone, so that a job never holds more than it asks for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drumroll_operator.actions import Action, CreatePod, DeletePod
from drumroll_operator.budget import Budgets, Charge
from drumroll_operator.census import Census, replica_name
from drumroll_operator.labels import pod_name
from drumroll_operator.observed import PodView, Progress
from drumroll_operator.replacing import Course, Judged, judge, replace_at
from drumroll_operator.timings import Timings
from drumroll_operator.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Ended replicas with their courses, and those that a smaller number leaves over."""

    judged: tuple[Judged, ...]
    victims: tuple[PodView, ...]
    surplus: tuple[PodView, ...]
    """Ended ones that need no successor."""

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Ends to be paid for."""
        return tuple(Charge(j.pod, j.verdict) for j in self.judged if j.course is Course.CHARGE)


def judge_rollouts(census: Census, wanted: Wanted, progress: Progress | None, timings: Timings) -> Rollouts:
    """Look at all of them."""
    pods = census.of_role("rollout")
    live = [pod for pod in pods if pod.live]
    judged = [judge(pod, progress, timings) for pod in pods if pod.ended and not pod.deleting]
    waiting = [j.pod for j in judged if j.course is not Course.LEAVE]
    over = len(live) + len(waiting) - wanted.rollouts
    surplus = sorted(waiting, key=lambda pod: -pod.index)[: max(over, 0)]
    victims = pick_victims(live, len(live) - wanted.rollouts, progress)
    return Rollouts(tuple(judged), victims, tuple(surplus))


def pick_victims(live: Iterable[PodView], count: int, progress: Progress | None) -> tuple[PodView, ...]:
    """Those with the least work to lose: not ready first, then fewest tokens in flight, then the highest index."""
    tokens = _tokens_in_flight(progress)

    def loss(pod: PodView) -> tuple[bool, int, int]:
        return pod.ready, tokens.get(replica_name(pod), 0), -pod.index

    return tuple(sorted(live, key=loss)[: max(count, 0)])


def _tokens_in_flight(progress: Progress | None) -> Mapping[str, int]:
    return {r.name: r.tokens_in_flight for r in progress.replicas} if progress is not None else {}


def missing_indices(pods: Sequence[PodView], taken: Iterable[str], job: str, count: int) -> list[int]:
    """Lowest free indices below `count`, as many as are wanted beyond the pods that there are in any state."""
    occupied = {pod.index for pod in pods}
    names = set(taken)
    free = [i for i in range(count) if i not in occupied and pod_name(job, "rollout", i) not in names]
    return free[: max(count - len(pods), 0)]


def rollout_actions(
    census: Census,
    rollouts: Rollouts,
    budgets: Budgets,
    *,
    may_create: bool,
    wanted: Wanted,
    now: float,
    timings: Timings,
) -> tuple[list[Action], list[float]]:
    """(actions, times when more is due)."""
    actions: list[Action] = [DeletePod(pod.name, pod.uid) for pod in (*rollouts.surplus, *rollouts.victims)]
    later: list[float] = []
    for judged in rollouts.judged:
        if judged.pod in rollouts.surplus or judged.course is Course.LEAVE:
            continue
        at = replace_at(judged, budgets, wanted, timings)
        if at is not None and at <= now:
            actions.append(DeletePod(judged.pod.name, judged.pod.uid))
        elif at is not None or judged.until is not None:
            later.append(at if at is not None else judged.until or now)
    if may_create:
        pods = census.of_role("rollout")
        for index in missing_indices(pods, census.foreign, census.job, wanted.rollouts):
            actions.append(CreatePod("rollout", index, pod_name(census.job, "rollout", index)))
    return actions, later
