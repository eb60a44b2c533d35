"""Stages of an episode: each with its own places and its own deadline."""

import asyncio
from typing import Any

import pytest
from drumroll_rollout.episode import Stage, StageName, Stages, StageTimeout, play
from drumroll_rollout.rewards import ScoreResult

from drumroll.testing import eventually


def stages(*, acquire: int = 8, run: int = 8, evaluate: int = 8, deadline_s: float | None = None) -> Stages:
    return Stages(
        Stage(StageName.ACQUIRE, concurrency=acquire, deadline_s=deadline_s),
        Stage(StageName.RUN, concurrency=run, deadline_s=deadline_s),
        Stage(StageName.EVALUATE, concurrency=evaluate, deadline_s=deadline_s),
    )


class Scripted:
    """Waits in each stage for a gate of its own, and counts who is where."""

    def __init__(self, inside: dict[str, int], gates: dict[str, asyncio.Event]) -> None:
        self.inside, self.gates, self.released = inside, gates, False

    async def _stay(self, stage: str) -> None:
        self.inside[stage] += 1
        try:
            await self.gates[stage].wait()
        finally:
            self.inside[stage] -= 1

    async def acquire(self) -> None:
        await self._stay("acquire")

    async def run(self) -> None:
        await self._stay("run")

    async def evaluate(self) -> ScoreResult:
        await self._stay("evaluate")
        return ScoreResult(1.0, {})

    async def release(self) -> None:
        self.released = True


def scene() -> tuple[dict[str, int], dict[str, asyncio.Event]]:
    names = ("acquire", "run", "evaluate")
    return dict.fromkeys(names, 0), {name: asyncio.Event() for name in names}


async def test_each_stage_admits_as_many_as_it_has_places() -> None:
    inside, gates = scene()
    limits = stages(acquire=6, run=3, evaluate=1)
    heard: list[StageName] = []
    tasks = [asyncio.create_task(play(Scripted(inside, gates), limits, heard.append)) for _ in range(6)]
    await eventually(lambda: inside["acquire"] == 6)
    gates["acquire"].set()
    await eventually(lambda: heard.count(StageName.RUN) == 6)
    assert inside["run"] == 3
    gates["run"].set()
    await eventually(lambda: heard.count(StageName.EVALUATE) == 6)
    assert inside["evaluate"] == 1
    gates["evaluate"].set()
    assert [result.reward for result in await asyncio.gather(*tasks)] == [1.0] * 6


@pytest.mark.parametrize("late", ["acquire", "run", "evaluate"])
async def test_a_stage_over_its_deadline_is_named_and_the_episode_released(late: str) -> None:
    inside, gates = scene()
    for name, gate in gates.items():
        if name != late:
            gate.set()
    episode = Scripted(inside, gates)
    with pytest.raises(StageTimeout, match=f"stage {late} took longer than 0.05 s"):
        await play(episode, stages(deadline_s=0.05), lambda _: None)
    assert episode.released
    assert inside[late] == 0


async def test_waiting_for_a_place_does_not_count_towards_the_deadline() -> None:
    limits = Stage(StageName.EVALUATE, concurrency=1, deadline_s=0.2)
    order: list[int] = []

    async def one(number: int) -> None:
        worked = asyncio.Event()
        async with limits.entered():
            asyncio.get_running_loop().call_later(0.08, worked.set)
            await worked.wait()
            order.append(number)

    await asyncio.gather(*(one(number) for number in range(4)))
    assert order == [0, 1, 2, 3]


async def test_a_timeout_of_the_episodes_own_is_not_the_stages() -> None:
    class Own(Scripted):
        async def evaluate(self) -> Any:
            raise TimeoutError("of a tool")

    inside, gates = scene()
    for gate in gates.values():
        gate.set()
    with pytest.raises(TimeoutError, match="of a tool"):
        await play(Own(inside, gates), stages(deadline_s=5.0), lambda _: None)
