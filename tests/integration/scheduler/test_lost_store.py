"""Case X4: the store comes back empty in the middle of a job."""

import asyncio
import shutil
from typing import Any

from drumroll_planner import records as r
from drumroll_scheduler.scripted_replica import Answer

from drumroll.testing import eventually

STEPS = 8


def slow(grant: Any) -> Answer:
    return Answer(num_tokens=4, reward=float(grant.samples[0].index), seconds=0.05)


async def begin(world: Any, steps: int) -> tuple[Any, list[Any]]:
    """A job with some steps done: (scheduler, the clients' tasks)."""
    scheduler = await world.start()
    replica, trainer = await world.replica(script=slow), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    await eventually(lambda: len(trainer.trained) >= steps, 30.0, f"{steps} steps")
    return scheduler, work


def check_story(world: Any) -> list[r.Record]:
    """Every admitted ticket has one end, every trained one is in one step of the final lineage."""
    records: list[r.Record] = world.records()
    decisions: dict[int, r.Decided] = {}
    for record in records:
        if isinstance(record, r.Rewound):
            decisions = {step: one for step, one in decisions.items() if step < record.step}
        if isinstance(record, r.Decided):
            decisions[record.step] = record
    trained = [member.ticket for _, decided in sorted(decisions.items()) for member in decided.tickets]
    assert sorted(decisions) == list(range(STEPS))
    assert len(trained) == len(set(trained)) == 2 * STEPS
    # A replica may still say what it holds after the end.
    assert isinstance(records[-1], r.JobEnded | r.ReplicaLeft | r.Attested)
    return records


async def test_flushall_under_a_living_scheduler_costs_no_ticket(make_world: Any) -> None:
    world = await make_world(spec={"steps": STEPS})
    scheduler, work = await begin(world, 3)
    await world.store.connect("admin").flushall()
    core = scheduler.app.core
    await eventually(lambda: any(note.reason == "StreamLost" for note in core.story.notes), 5.0, "StreamLost")
    assert await world.finish(scheduler, *work) == 0
    notes = [record for record in check_story(world) if isinstance(record, r.Noted) and record.reason == "StreamLost"]
    assert len(notes) == 1
    assert "rebuilt from memory" in notes[0].message
    assert [row["step"] for row in world.metrics()] == list(range(STEPS))


async def test_flushall_twice_and_a_restart_between_go_on_with_the_same_story(make_world: Any) -> None:
    world = await make_world(spec={"steps": STEPS})
    scheduler, work = await begin(world, 2)
    admin = world.store.connect("admin")
    for _ in range(2):
        notes = len(scheduler.app.core.story.notes)
        await admin.flushall()
        core = scheduler.app.core
        await eventually(lambda core=core, notes=notes: len(core.story.notes) > notes, 5.0, "StreamLost")
    await scheduler.kill()
    successor = await world.start()
    assert await world.finish(successor, *work) == 0
    check_story(world)


async def test_store_and_scheduler_lost_together_are_rebuilt_from_checkpoint_and_archive(make_world: Any) -> None:
    """The trainer lives, and shows the steps that the ledger lost."""
    world = await make_world(spec={"steps": STEPS})
    scheduler, work = await begin(world, 3)
    before = scheduler.app.core.incarnation
    await scheduler.kill()
    await world.store.kill()
    shutil.rmtree(world.store.directory)
    await world.store.start()
    successor = await world.start()
    assert successor.app.core.incarnation > before
    assert await world.finish(successor, *work) == 0
    notes = [record for record in check_story(world) if isinstance(record, r.Noted) and record.reason == "StreamLost"]
    assert "rebuilt from checkpoint and archive" in notes[0].message


async def test_all_but_the_volume_lost_goes_back_to_the_checkpoint(make_world: Any) -> None:
    world = await make_world(spec={"steps": STEPS})
    scheduler, work = await begin(world, 3)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await scheduler.kill()
    await world.store.connect("admin").flushall()
    successor = await world.start()
    replica, second = await world.replica(script=slow), await world.trainer()
    assert second.held.step >= 2
    again = [world.run(replica.run()), world.run(second.run())]
    assert await world.finish(successor, *again) == 0
    check_story(world)
    assert [row["step"] for row in world.metrics()] == list(range(STEPS))


async def test_samples_that_are_gone_when_the_trainer_reads_them_rewind_the_job(make_world: Any) -> None:
    world = await make_world(spec={"steps": STEPS})
    scheduler = await world.start()
    replica, trainer = await world.replica(script=slow), await world.trainer()
    work = [world.run(replica.run())]
    await trainer.register()
    core = scheduler.app.core
    while trainer.held.step < 3:
        await trainer.take_step()
    await eventually(lambda: core.story.steps_decided > 3, 10.0, "a decision that is not trained")
    decided = core.policy.state.steps[3].decision
    await world.stream("scheduler").delete([decided.tickets[0].samples[0].entry_id])
    work.append(world.run(trainer.run()))
    assert await world.finish(scheduler, *work) == 0
    assert trainer.rewinds == 1
    check_story(world)
    assert [row["step"] for row in world.metrics()] == list(range(STEPS))
    assert {row["lineage"] for row in world.metrics() if row["step"] >= 2} == {1}
