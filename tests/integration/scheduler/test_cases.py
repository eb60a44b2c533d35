"""Answers that never come (A2), groups that teach nothing (A4), other data on resume (W6), synchronous training."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from drumroll_planner import records as r
from drumroll_planner.plan import PassInputs
from drumroll_planner.planners import ShufflePlanner
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler.app import Settings
from drumroll_scheduler.opening import Accept
from drumroll_scheduler.scripted_job import write_data
from drumroll_scheduler.scripted_replica import Answer, varied

from drumroll.errors import DataError, Fenced, JobError, JobFailed
from drumroll.testing import eventually

HASTY = {"heartbeatSeconds": 0.1, "leaseSeconds": 0.5}


async def test_a_prompt_that_answers_on_its_second_lease_is_trained(make_world: Any) -> None:
    """Case A2: leased again within two lease times, and everybody else trains."""
    world = await make_world(spec={"scheduler": HASTY, "steps": 4})
    scheduler = await world.start()

    def stuck_once(grant: pb.LeaseGrant) -> Answer | None:
        stuck = grant.ticket.ordinal == 5 and grant.samples[0].attempt == 0
        return None if stuck else varied(grant)

    replica, trainer = await world.replica(script=stuck_once), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    assert await world.finish(scheduler, *work) == 0
    trained = {member.ticket for decided in trainer.trained for member in decided.tickets}
    assert (0, 5) in trained


async def test_a_prompt_that_never_answers_fails_its_ticket_with_ticket_and_replica_named(make_world: Any) -> None:
    """Case A2: after maxAttempts tries the ticket ends as failed; all others train."""
    world = await make_world(spec={"scheduler": {**HASTY, "maxAttempts": 2}, "steps": 4})
    scheduler = await world.start()
    viewer = await world.client("viewer")

    def stuck(grant: pb.LeaseGrant) -> Answer | None:
        return None if grant.ticket.ordinal == 5 else varied(grant)

    replica, trainer = await world.replica(script=stuck), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    core = scheduler.app.core
    await eventually(lambda: any(note.reason == "TicketFailed" for note in core.story.notes), 20.0, "TicketFailed")
    status = await viewer.status(pb.StatusRequest())
    texts = {note.reason: note.message for note in status.notes}
    assert "(0, 5)" in texts["TicketFailed"]
    assert "rollout-0" in texts["LeaseExpired"]
    assert status.tickets["failed"] == 1
    assert await world.finish(scheduler, *work) == 0


async def test_groups_that_are_all_equal_fail_the_job_with_their_count(make_world: Any) -> None:
    """Case A4: the condition says how many of how many groups had equal rewards."""
    algorithm = {"dynamicSampling": True, "promptsPerStep": 4, "maxSamplingTries": 10}
    world = await make_world(spec={"algorithm": algorithm, "steps": 3}, num_prompts=64)
    scheduler = await world.start()
    replica = await world.replica(script=lambda grant: Answer(reward=1.0))
    trainer = await world.trainer()
    replying, training = world.run(replica.run()), world.run(trainer.run())
    assert await asyncio.wait_for(scheduler.task, 60) == 0
    with pytest.raises(JobFailed, match="40 of 40 groups had equal rewards"):
        await training
    await replying
    assert scheduler.app.core.view().story.ended.reason == "40 of 40 groups had equal rewards"


async def test_one_group_in_ten_that_differs_gives_full_steps(make_world: Any) -> None:
    """Case A4, second input: full steps of 4, filtered tickets accounted for."""
    algorithm = {"dynamicSampling": True, "promptsPerStep": 4, "maxSamplingTries": 10}
    world = await make_world(spec={"algorithm": algorithm, "steps": 2}, num_prompts=200)
    scheduler = await world.start()

    def seldom(grant: pb.LeaseGrant) -> Answer:
        return varied(grant) if grant.ticket.ordinal % 10 == 0 else Answer(reward=1.0)

    replica, trainer = await world.replica(script=seldom, slots=32), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    assert await world.finish(scheduler, *work) == 0
    assert [len(decided.tickets) for decided in trainer.trained] == [4, 4]
    ends = [record for record in world.records() if isinstance(record, r.Ended)]
    admitted = [record for record in world.records() if isinstance(record, r.Admitted)]
    assert sum(len(end.tickets) for end in ends) == len(admitted)


def plain_loop(num_prompts: int, per_step: int, steps: int, seed: int) -> Iterator[tuple[int, set[Any], int]]:
    """Take the next prompts of the pass, answer them all, train, repeat."""

    def tickets() -> Iterator[tuple[int, int]]:
        for epoch in itertools.count():
            inputs = PassInputs(epoch, num_prompts, seed, np.zeros(num_prompts, np.int32), np.zeros(0, np.float32))
            yield from ((epoch, ordinal) for ordinal in range(len(ShufflePlanner().plan(inputs))))

    queue = tickets()
    for step in range(steps):
        yield step, set(itertools.islice(queue, per_step)), step


async def test_with_lag_0_and_one_replica_the_run_is_the_plain_loop(make_world: Any) -> None:
    spec = {"maxPolicyLag": 0, "steps": 7, "algorithm": {"promptsPerStep": 3, "groupSize": 2}}
    world = await make_world(spec=spec, num_prompts=8)
    scheduler = await world.start()
    replica, trainer = await world.replica(), await world.trainer()
    assert await world.finish(scheduler, world.run(replica.run()), world.run(trainer.run())) == 0
    run = [(one.step, {tuple(m.ticket) for m in one.tickets}, one.version) for one in trainer.trained]
    assert run == list(plain_loop(8, 3, 7, seed=0))
    assert {row["lag_max"] for row in world.metrics()} == {0}


async def test_a_resumed_trainer_takes_the_same_steps_again_and_no_row_twice(make_world: Any) -> None:
    world = await make_world(spec={"steps": 6, "trainer": {"checkpoint": {"everySteps": 3}}})
    scheduler = await world.start()
    replica, first = await world.replica(), await world.trainer()
    answering = world.run(replica.run())
    await first.register()
    while first.held.step < 5:
        await first.take_step()
    second = await world.trainer()
    assert second.held.step == 3
    assert await world.finish(scheduler, answering, world.run(second.run())) == 0
    again = {one.step: one for one in second.trained}
    assert [again[step] for step in (3, 4)] == first.trained[3:5]
    assert [row["step"] for row in world.metrics()] == list(range(6))


async def test_a_trainer_that_was_replaced_is_fenced(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    old, new = await world.trainer(), await world.trainer()
    await old.register()
    waiting = asyncio.create_task(old.run())
    await eventually(lambda: old.epoch == 2, 10.0, "the old trainer's registration")
    await new.register()
    with pytest.raises(Fenced, match="stale trainer epoch 2: trainer epoch 3"):
        await asyncio.wait_for(waiting, 10)


async def test_other_data_on_resume_is_refused_with_both_digests_and_counts(make_world: Any) -> None:
    """Case W6."""
    world = await make_world(num_prompts=8)
    first = await world.start()
    viewer = await world.client("viewer")
    await viewer.status(pb.StatusRequest())
    before = first.app.core.story.opened
    await first.kill()
    for prompts, prefix in ((3, "other"), (9, "prompt"), (8, "reordered")):
        info = write_data(world.directory / "data", prompts, prefix=prefix)
        with pytest.raises(DataError) as refusal:
            await world.start()
        text = str(refusal.value)
        assert f"8 rows with digest {before.data_digest[:16]}" in text
        assert f"{prompts} rows with digest {info.digest[:16]}" in text
        assert "--accept-data-change" in text


async def test_another_group_size_on_resume_needs_its_flag(make_world: Any) -> None:
    world = await make_world()
    await (await world.start()).kill()
    algorithm = world.job.spec.algorithm.model_copy(update={"group_size": 3})
    changed = world.job.model_copy(update={"spec": world.job.spec.model_copy(update={"algorithm": algorithm})})
    with pytest.raises(JobError, match="--accept-job-change"):
        await world.start(job=changed)
    running = await world.start(job=changed, accept=Accept(job=True))
    replica, trainer = await world.replica(), await world.trainer()
    work = [world.run(replica.run()), world.run(trainer.run())]
    assert await world.finish(running, *work, audited=False) == 0
    assert {len(member.samples) for one in trainer.trained for member in one.tickets} == {3}


async def test_other_data_are_gone_on_with_where_the_flag_says_so(make_world: Any) -> None:
    """Case W6: the next pass begins, and every ticket still has one end."""
    world = await make_world(num_prompts=16, spec={"steps": 8})
    first = await world.start()
    replica, trainer = await world.replica(), await world.trainer()
    answering = world.run(replica.run())
    await trainer.register()
    while trainer.held.step < 3:
        await trainer.take_step()
    await first.kill()
    num_decided = first.app.core.story.steps_decided
    write_data(world.directory / "data", 3, prefix="other")
    running = await world.start(accept=Accept(data=True))
    assert await world.finish(running, answering, world.run(trainer.run())) == 0
    fresh = [member for one in trainer.trained if one.step >= num_decided for member in one.tickets]
    assert fresh
    assert {member.row for member in fresh} <= {0, 1, 2}


async def test_a_full_volume_keeps_the_journal_in_the_store(make_world: Any) -> None:
    world = await make_world(spec={"steps": 4})
    journal_dir = world.job.layout.journal_dir
    scheduler = await world.start(
        settings=Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=0.3, archive_every_records=5)
    )
    journal = scheduler.app.core.journal
    viewer = await world.client("viewer")
    await viewer.status(pb.StatusRequest())
    aside = journal_dir.with_name("aside")
    journal_dir.rename(aside)
    journal_dir.write_text("not a directory")
    replica = await world.replica()
    working = world.run(replica.run())
    trainer = await world.trainer()
    await trainer.register()
    await eventually(lambda: journal.num_tail_records > 20, 20.0, "a tail that is not archived")
    journal_dir.unlink()
    aside.rename(journal_dir)
    await eventually(lambda: journal.num_tail_records < 20, 20.0, "an archived tail")
    assert await world.finish(scheduler, working, world.run(trainer.run())) == 0
