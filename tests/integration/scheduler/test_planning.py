"""Plans of later passes: made by a process of their own from the answers before, kept in files over a restart."""

import asyncio
from pathlib import Path
from typing import Any

from drumroll_planner import records as r
from drumroll_planner.asp import planfile
from drumroll_planner.lengths import log

JOB = {"steps": None, "epochs": 3, "data": {"maxResponseTokens": 256}}


def plans(world: Any) -> Path:
    return Path(world.job.layout.job_dir) / "plans"


async def test_each_pass_is_planned_from_the_answers_of_the_ones_before(make_world: Any) -> None:
    world = await make_world(spec=JOB, num_prompts=8)
    scheduler = await world.start()
    trainer = await world.trainer()
    replica = await world.replica()
    assert await world.finish(scheduler, world.run(replica.run()), world.run(trainer.run())) == 0
    found = {plan.epoch: plan for plan in map(planfile.read, plans(world).glob("*.plan"))}
    assert set(found) == {1, 2}
    assert all(sorted(plan.rows) == list(range(8)) for plan in found.values())
    assert all(plan.explanation.lengths.num_answers > 0 and plan.tokens.min() > 0 for plan in found.values())
    journaled = {record.epoch: record.plan_digest for record in world.records() if isinstance(record, r.PassPlanned)}
    assert {epoch: plan.digest for epoch, plan in found.items()} == {1: journaled[1], 2: journaled[2]}
    answers = log.decode((plans(world) / "answers.log").read_bytes())
    assert sorted(answers["row"]) == sorted(list(range(8)) * 3)
    assert any(isinstance(record, r.Noted) and record.reason == "PassPlanned" for record in world.records())
    assert world.metrics()[-1]["queue_plan_epoch"] >= 1


async def test_a_restarted_scheduler_goes_on_with_the_plan_that_it_journaled(make_world: Any) -> None:
    world = await make_world(spec=JOB, num_prompts=8)
    scheduler = await world.start()
    trainer = await world.trainer()
    replica = await world.replica()
    work = [world.run(replica.run()), world.run(trainer.run())]
    for _ in range(3000):
        if 1 in scheduler.app.core.story.plans:
            break
        await asyncio.sleep(0.02)
    await scheduler.kill()
    second = await world.start()
    assert await world.finish(second, *work) == 0
    by_epoch: dict[int, set[str]] = {}
    for record in world.records():
        if isinstance(record, r.PassPlanned):
            by_epoch.setdefault(record.epoch, set()).add(record.plan_digest)
    assert {epoch: len(digests) for epoch, digests in by_epoch.items()} == {0: 1, 1: 1, 2: 1}


async def test_a_pass_whose_planning_fails_is_shuffled_and_says_so(make_world: Any) -> None:
    world = await make_world(spec={**JOB, "epochs": 2, "scheduler": {"costs": "no-such-file.json"}}, num_prompts=8)
    scheduler = await world.start()
    trainer = await world.trainer()
    replica = await world.replica()
    assert await world.finish(scheduler, world.run(replica.run()), world.run(trainer.run())) == 0
    notes = [
        record.message for record in world.records() if isinstance(record, r.Noted) and record.reason == "PlanFailed"
    ]
    assert notes
    assert "no-such-file.json" in notes[0]
