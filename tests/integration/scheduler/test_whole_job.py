"""A job from its first to its last step, by scripted clients over real gRPC and a real store."""

from typing import Any

from drumroll.segments import read_segments


async def test_a_job_runs_to_its_end_and_leaves_nothing_behind(make_world: Any) -> None:
    world = await make_world()
    scheduler = await world.start()
    trainer = await world.trainer()
    replica = await world.replica()
    work = [world.run(replica.run()), world.run(trainer.run())]
    assert await world.finish(scheduler, *work) == 0
    assert [decided.step for decided in trainer.trained] == [0, 1, 2, 3]
    assert [row["step"] for row in world.metrics()] == [0, 1, 2, 3]
    assert (await world.stream("scheduler").usage()).entries == 0
    assert [row["step"] for row in world.timeline("decision")] == [0, 1, 2, 3]
    assert read_segments(world.job.layout.journal_dir)
