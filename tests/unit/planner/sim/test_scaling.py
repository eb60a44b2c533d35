"""Fleet sizes, the plateau, and the sentences about them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from drumroll_planner.bounds import Bounds
from drumroll_planner.sim import SimJob, SimResult, simulate
from drumroll_planner.sim.scaling import Point, more_sentence, plateau, plateau_sentence, sweep


@pytest.fixture(scope="module")
def result(job_of: Callable[..., SimJob]) -> SimResult:
    return simulate(job_of(), mode="fast")


def points(result: SimResult, *step_s: float, bounds: Bounds | None = None) -> list[Point]:
    steps = len(result.steps)
    return [
        Point(2**place, replace(result, makespan_s=seconds * steps, bounds=bounds or result.bounds))
        for place, seconds in enumerate(step_s)
    ]


def test_the_plateau_begins_where_no_larger_fleet_saves_much(result: SimResult) -> None:
    found = plateau(points(result, 8.0, 4.0, 3.0, 2.95, 2.9))
    assert found is not None
    assert found.replicas == 4
    assert plateau(points(result, 8.0, 4.0, 2.0)) is None


def test_the_plateau_is_told_with_its_reason(result: SimResult) -> None:
    waits = Bounds(1.0, 1.0, 9.0)
    told = plateau_sentence(points(result, 8.0, 4.0, 3.9, bounds=waits))
    assert told.startswith("The plateau begins at 2 replicas: 4 would save 3%. There, the longest answers")
    assert "more save nothing" in plateau_sentence(points(result, 4.0, 4.1))
    assert plateau_sentence(points(result, 8.0, 4.0)).startswith("No plateau up to 2 replicas")
    assert "1..64" in plateau_sentence(points(result, 8.0))


def test_more_gpus_are_told_in_one_sentence(result: SimResult) -> None:
    few, many = points(result, 8.0, 4.0)
    assert more_sentence(few, many, "8 more GPUs") == (
        "8 more GPUs (1 to 2 replicas): 4 s a step instead of 8, 50% less."
    )
    assert more_sentence(few, few, "x").endswith("no less.")
    assert more_sentence(many, few, "x").endswith("100% more.")


def test_a_sweep_simulates_each_size_once(job_of: Callable[..., SimJob]) -> None:
    swept = sweep(job_of(), [2, 1, 2], mode="fast")
    assert [point.replicas for point in swept] == [1, 2]
    assert all(0.0 <= point.left < 1.0 and point.bound_s <= point.step_s for point in swept)
    assert replace(swept[0], result=replace(swept[0].result, makespan_s=0.0)).left == 0.0


def test_a_fleet_of_unequal_replicas_is_swept_as_its_first(job_of: Callable[..., SimJob]) -> None:
    job = job_of()
    unequal = replace(job, costs=[job.replica_costs[0], job.replica_costs[0].scaled(2.0)])
    assert sweep(unequal, [2], mode="fast")[0].step_s == sweep(job, [2], mode="fast")[0].step_s
