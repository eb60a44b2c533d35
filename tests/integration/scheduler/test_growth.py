"""What a long job may not let grow: the store's stream and journal, the ledger's snapshot, the scheduler's books."""

import asyncio
import json
from functools import partial
from typing import Any

from drumroll_scheduler.app import Settings
from drumroll_scheduler.archive import snapshot_of
from drumroll_scheduler.core import Core

from drumroll.store import command
from drumroll.testing import eventually

SETTINGS = Settings(tick_s=0.02, housekeeping_s=0.05, linger_s=0.8, bind_s=10.0, archive_every_records=150)
STEPS = 80


def trained(trainer: Any, steps: int) -> bool:
    return len(trainer.trained) >= steps


async def lengths(world: Any) -> tuple[int, int]:
    """Entries of stream and journal."""
    redis = world.store.connect("scheduler")
    keys = ("drumroll:{job-1}:samples", "drumroll:{job-1}:journal")
    samples, journal = [int(await command(redis, "XLEN", key)) for key in keys]
    return samples, journal


def sizes(core: Core) -> dict[str, int]:
    """Items of everything that could grow with the steps."""
    snapshot = json.loads(snapshot_of(core, "job-1", 0).to_json())
    found = {f"policy.{name}": len(part) for name, part in snapshot["policy"].items() if isinstance(part, list | dict)}
    found |= {f"story.{name}": len(part) for name, part in snapshot["story"].items() if isinstance(part, list | dict)}
    found["entries"] = len(core.policy.state.entries.needed) + len(core.policy.state.entries.released)
    found["tail"] = core.journal.num_tail_records
    return found


async def test_a_job_of_many_short_passes_does_not_grow(make_world: Any) -> None:
    world = await make_world(spec={"steps": STEPS, "trainer": {"checkpoint": {"everySteps": 4}}}, num_prompts=3)
    running = await world.start(settings=SETTINGS)
    replica, trainer = await world.replica(), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    seen: list[dict[str, int]] = []
    in_store: list[tuple[int, int]] = []
    for steps in (STEPS // 4, STEPS // 2, STEPS - 4):
        await eventually(partial(trained, trainer, steps), 60.0, f"{steps} steps")
        seen.append(sizes(running.app.core))
        in_store.append(await lengths(world))
    assert await world.finish(running, *work) == 0
    # Checkpoints may come a little later, passes may be in any state: a few items up and down are no growth.
    grown = {name: [row[name] for row in seen] for name in seen[0] if seen[-1][name] > seen[0][name] + 40}
    assert set(grown) <= {"story.recent", "tail"}, grown
    assert max(row["tail"] for row in seen) <= 2 * SETTINGS.archive_every_records
    assert max(samples for samples, _ in in_store) <= 80
    assert max(journal for _, journal in in_store) <= 300


async def test_a_scheduler_that_was_killed_counts_the_tail_it_found(make_world: Any) -> None:
    world = await make_world(spec={"steps": 40, "trainer": {"checkpoint": {"everySteps": 40}}})
    first = await world.start()
    replica, trainer = await world.replica(), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    await eventually(lambda: len(trainer.trained) >= 4, 30.0, "four steps")
    await first.kill()
    # No checkpoint has come yet: each successor finds all records so far, and archives once they are many.
    second = await world.start(settings=Settings(tick_s=0.02, housekeeping_s=10.0, archive_every_records=20))
    assert second.app.core.journal.num_tail_records >= 20
    await second.kill()
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
