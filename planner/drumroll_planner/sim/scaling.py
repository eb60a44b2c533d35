"""The same job on fleets of several sizes: where more replicas stop paying, and what a few more would do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from drumroll_planner.costs import CostModel
from drumroll_planner.sim import SimJob, SimResult, simulate

PLATEAU_GAIN = 0.05
"""Twice the replicas must save more than this, or the plateau has begun."""

_REASONS = {
    "generation": "the engines are full, so more of them help",
    "trainer": "the trainer sets the pace",
    "longest answer": "the longest answers set the pace: a step waits for them, however many replicas there are",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One fleet size."""

    replicas: int
    result: SimResult

    @property
    def step_s(self) -> float:
        """Mean seconds a step, over the whole job."""
        return self.result.makespan_s / len(self.result.steps)

    @property
    def bound_s(self) -> float:
        """Seconds a step below which no schedule gets."""
        return self.result.bounds.best_s / len(self.result.steps)

    @property
    def left(self) -> float:
        """Share of the time that is above the bound."""
        return 1.0 - self.bound_s / self.step_s if self.step_s else 0.0


def sweep(job: SimJob, sizes: Iterable[int], *, mode: Literal["policy", "fast"] = "policy") -> list[Point]:
    """The job on fleets of equal replicas, smallest first."""
    costs = job.costs if isinstance(job.costs, CostModel) else job.replica_costs[0]
    resized = (replace(job, num_replicas=size, costs=costs) for size in sorted(set(sizes)))
    return [Point(each.num_replicas, simulate(each, mode=mode)) for each in resized]


def plateau(points: Sequence[Point]) -> Point | None:
    """The smallest fleet that no larger one beats by more than the plateau's gain; None: none of these."""
    for place, point in enumerate(points[:-1]):
        if all(later.step_s >= (1.0 - PLATEAU_GAIN) * point.step_s for later in points[place + 1 :]):
            return point
    return None


def plateau_sentence(points: Sequence[Point]) -> str:
    """Where the plateau is, and what makes it."""
    found = plateau(points)
    last = points[-1]
    if found is None and len(points) < 2:
        return "The plateau is not looked for: name several numbers of replicas, such as --replicas 1..64."
    if found is None:
        return f"No plateau up to {last.replicas} replicas: the last doubling still pays ({_reason(last)})."
    best = min(points, key=lambda point: point.step_s)
    saved = 1.0 - best.step_s / found.step_s
    more = f"{best.replicas} would save {saved:.0%}" if best.replicas > found.replicas else "more save nothing"
    return f"The plateau begins at {_replicas(found.replicas)}: {more}. There, {_reason(found)}."


def more_sentence(now: Point, more: Point, added: str) -> str:
    """What a few more replicas would do."""
    change = 1.0 - more.step_s / now.step_s
    verb = f"{change:.0%} less" if change >= 0.005 else ("no less" if change > -0.005 else f"{-change:.0%} more")
    fleets = f"{now.replicas} to {_replicas(more.replicas)}"
    return f"{added} ({fleets}): {more.step_s:.3g} s a step instead of {now.step_s:.3g}, {verb}."


def _reason(point: Point) -> str:
    return _REASONS[point.result.bounds.binding]


def _replicas(count: int) -> str:
    return f"{count} replica{'s' if count != 1 else ''}"
