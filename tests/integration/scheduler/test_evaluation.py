"""Evaluation rounds by scripted clients over real gRPC and a real store."""

import asyncio
import json
from typing import Any

from drumroll_planner import records as r
from drumroll_planner.evaluation import HOLDER
from drumroll_proto.v1 import common_pb2, scheduler_pb2
from drumroll_scheduler.scripted_replica import Answer, varied

from drumroll.testing import eventually

SPEC = {
    "data": {
        "train": {"path": "data.jsonl"},
        "eval": {"path": "eval.jsonl", "everySteps": 2, "samplesPerPrompt": 2},
        "maxPromptTokens": 8,
        "maxResponseTokens": 64,
    },
    "steps": 6,
}
NUM_EVAL_PROMPTS = 5


def graded(grant: scheduler_pb2.LeaseGrant) -> Answer:
    """Evaluated answers are right for even rows."""
    if grant.kind != common_pb2.LEASE_KIND_EVAL:
        return varied(grant)
    assert grant.constraint.exactly
    assert grant.constraint.version == grant.version
    return Answer(num_tokens=6, reward=float(grant.row % 2 == 0), seconds=0.01)


def of_kind(world: Any, kind: type) -> list[Any]:
    return [record for record in world.records() if isinstance(record, kind)]


async def train_slowly(trainer: Any, core: Any) -> None:
    """Train, but wait for the running round before each step."""
    await trainer.register()
    while await trainer.take_step():
        await eventually(lambda: core.evaluation.round is None, deadline_s=30.0)


async def finished_job(world: Any, *, slowly: bool = True, replicas: int = 2) -> list[Any]:
    """Run the job to its end; its replicas."""
    scheduler = await world.start()
    trainer = await world.trainer()
    fleet = [await world.replica(name=f"rollout-{number}", slots=4, script=graded) for number in range(replicas)]
    work = [world.run(replica.run()) for replica in fleet]
    training = train_slowly(trainer, scheduler.app.core) if slowly else trainer.run()
    assert await world.finish(scheduler, *work, world.run(training)) == 0
    return fleet


async def test_every_other_version_and_the_last_are_evaluated(make_world: Any) -> None:
    world = await make_world(SPEC, num_eval_prompts=NUM_EVAL_PROMPTS)
    fleet = await finished_job(world)
    rounds = of_kind(world, r.Evaluated)
    assert [(one.step, one.version, one.complete) for one in rounds] == [(s, s, True) for s in (0, 2, 4, 6)]
    for one in rounds:
        assert (one.num_samples, one.num_failed, one.lineage) == (10, 0, 0)
        assert (one.reward_mean, round(one.reward_std, 6), one.response_length_mean) == (0.6, 0.489898, 6.0)
    assert not [verdict for replica in fleet for verdict in replica.refused]
    assert (await world.stream("scheduler").usage()).entries == 0


async def test_a_round_that_the_trainer_outruns_ends_incomplete_and_is_noted(make_world: Any) -> None:
    world = await make_world(SPEC, num_eval_prompts=200)
    await finished_job(world, slowly=False)
    rounds = of_kind(world, r.Evaluated)
    assert [one.step for one in rounds] == sorted({one.step for one in rounds})
    assert (rounds[-1].step, rounds[-1].complete, rounds[-1].num_samples) == (6, True, 400)
    notes = [note for note in of_kind(world, r.Noted) if note.reason == "EvaluationIncomplete"]
    assert len(notes) == sum(not one.complete for one in rounds) > 0


async def test_evaluations_are_rows_of_their_own_file_and_pin_their_version(make_world: Any) -> None:
    world = await make_world({**SPEC, "steps": 3}, num_eval_prompts=2)
    await finished_job(world, replicas=1)
    lines = (world.directory / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 2, 3]
    assert {json.loads(line)["reward_mean"] for line in lines} == {0.5}
    pins = [(type(pin), pin.version) for pin in world.records() if getattr(pin, "holder", "") == HOLDER]
    assert pins == [(kind, version) for version in (0, 2, 3) for kind in (r.Pinned, r.Unpinned)]
    assert not [record for record in of_kind(world, r.Leased) if record.kind is not r.LeaseKind.TRAIN]


async def test_the_job_goes_on_until_its_last_version_is_evaluated(make_world: Any) -> None:
    """Replicas are not told that all is over while they answer; the trainer has long gone."""
    world = await make_world({**SPEC, "steps": 2}, num_eval_prompts=2)

    def script(grant: scheduler_pb2.LeaseGrant) -> Answer | None:
        if grant.kind == common_pb2.LEASE_KIND_EVAL and grant.version == 2:
            return Answer(num_tokens=20, reward=1.0, seconds=2.0)
        return graded(grant)

    scheduler = await world.start()
    trainer = await world.trainer()
    replica = await world.replica(script=script)
    working = world.run(replica.run())
    await world.run(trainer.run())
    client = await world.client("viewer")
    status = await client.status(scheduler_pb2.StatusRequest())
    assert (status.phase, status.reason) == ("Running", "evaluates the last weights")
    assert (status.steps_done, status.steps_total) == (2, 2)
    assert await world.finish(scheduler, working) == 0
    records = world.records()
    assert [type(one) for one in records if isinstance(one, r.Evaluated | r.JobEnded)][-2:] == [r.Evaluated, r.JobEnded]


async def test_a_round_begins_again_after_a_scheduler_restart(make_world: Any) -> None:
    world = await make_world(SPEC, num_eval_prompts=NUM_EVAL_PROMPTS)
    stuck = asyncio.Event()

    def script(grant: scheduler_pb2.LeaseGrant) -> Answer | None:
        if grant.kind == common_pb2.LEASE_KIND_EVAL and not stuck.is_set():
            stuck.set()
            return None
        return graded(grant)

    first = await world.start()
    trainer, replica = await world.trainer(), await world.replica(script=script)
    work = [world.run(replica.run()), world.run(trainer.run())]
    async with asyncio.timeout(20):
        await stuck.wait()
    await first.kill()
    second = await world.start()
    assert await world.finish(second, *work) == 0
    rounds = of_kind(world, r.Evaluated)
    assert rounds[-1].step == 6
    assert all(one.num_samples == 10 for one in rounds if one.complete)
    assert len({one.step for one in rounds}) == len(rounds)
