"""Seeded accidents, one after the other, while a job runs: it finishes, and the audit holds."""

import asyncio
import random
from typing import Any

import pytest
from drumroll_scheduler.scripted_replica import Answer

STEPS = 12


def uneven(grant: Any) -> Answer:
    place = grant.ticket.ordinal * 7 + grant.samples[0].index * 3
    return Answer(num_tokens=1 + place % 9, reward=float(place % 2), seconds=0.02 * (place % 9))


class Accidents:
    """What may happen to a running job."""

    def __init__(self, world: Any, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.scheduler: Any = None
        self.work: dict[str, asyncio.Task[Any]] = {}

    async def begin(self) -> None:
        self.scheduler = await self.world.start()
        for name in ("rollout-0", "rollout-1"):
            await self.start_replica(name)
        await self.start_trainer()

    async def start_replica(self, name: str) -> None:
        replica = await self.world.replica(name=name, slots=4, script=uneven)
        self.work[name] = self.world.run(replica.run())

    async def start_trainer(self) -> None:
        trainer = await self.world.trainer()
        self.work["trainer"] = self.world.run(trainer.run())

    async def happen(self) -> None:
        """One accident."""
        kinds = [self.kill_scheduler, self.kill_store, self.kill_replica, self.kill_trainer, self.empty_store]
        await self.random.choice(kinds)()

    async def kill_scheduler(self) -> None:
        await self.scheduler.kill()
        self.scheduler = await self.world.start()

    async def kill_store(self) -> None:
        await self.world.store.kill()
        await self.world.store.start()

    async def kill_replica(self) -> None:
        name = self.random.choice(["rollout-0", "rollout-1"])
        await self.kill(name)
        await self.start_replica(name)

    async def kill_trainer(self) -> None:
        await self.kill("trainer")
        await self.start_trainer()

    async def empty_store(self) -> None:
        await self.world.store.connect("admin").flushall()

    async def kill(self, name: str) -> None:
        self.work[name].cancel()
        await asyncio.gather(self.work[name], return_exceptions=True)


@pytest.mark.parametrize("seed", range(6))
async def test_a_job_with_accidents_ends_with_a_clean_audit(make_world: Any, seed: int) -> None:
    world = await make_world(spec={"steps": STEPS, "maxPolicyLag": 2, "trainer": {"checkpoint": {"everySteps": 3}}})
    accidents = Accidents(world, seed)
    await accidents.begin()
    for _ in range(4):
        await asyncio.sleep(accidents.random.uniform(0.1, 0.5))
        if accidents.scheduler.task.done():
            break
        await accidents.happen()
    assert await world.finish(accidents.scheduler, *accidents.work.values(), within_s=90) == 0
    assert [row["step"] for row in world.metrics()] == list(range(STEPS))
