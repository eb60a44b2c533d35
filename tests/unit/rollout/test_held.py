"""Progress renews a lease: tokens do, and so does waiting in a stage that has a deadline of its own."""

import asyncio

import pytest
from drumroll_planner.records import LeaseKind, TicketId
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_rollout.batches import Batches
from drumroll_rollout.engine import Chunk
from drumroll_rollout.episode import StageName
from drumroll_rollout.held import Assignment, HeldSample, HeldSamples, assignments
from drumroll_rollout.leaving import Grace
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import SchedulerUnavailable
from drumroll.testing import eventually


def sample(lease_id: str, *, exactly: int | None = None, until: float = 0.0) -> HeldSample:
    return HeldSample(Assignment(lease_id, LeaseKind.TRAIN, TicketId(0, 1), 1, 0, 0, 0, None, exactly, until))


def test_a_running_sample_makes_progress_by_tokens_alone() -> None:
    held = HeldSamples()
    one = sample("a")
    one.stage = StageName.RUN
    held.add(one)
    assert [held.progress(weights_updating=False)["a"] for _ in range(3)] == [0, 0, 0]
    one.transcript.add(Chunk("a/0", (5, 6), (-1.0, -1.0), (0, 0), None))
    assert held.progress(weights_updating=False) == {"a": 2}


@pytest.mark.parametrize("stage", [StageName.ACQUIRE, StageName.EVALUATE, StageName.STREAM])
def test_other_stages_have_deadlines_of_their_own_and_count(stage: StageName) -> None:
    held = HeldSamples()
    one = sample("a")
    one.stage = stage
    held.add(one)
    assert [held.progress(weights_updating=False)["a"] for _ in range(3)] == [1, 2, 3]


def test_a_weight_load_is_progress_of_all() -> None:
    held = HeldSamples()
    one = sample("a")
    one.stage = StageName.RUN
    held.add(one)
    assert [held.progress(weights_updating=True)["a"] for _ in range(2)] == [1, 2]


def test_a_lease_that_is_over_is_not_taken_again() -> None:
    held = HeldSamples()
    one = sample("a")
    held.add(one)
    assert held.knows("a")
    held.remove(one)
    assert (len(held), held.knows("a"), held.knows("b")) == (0, True, False)


def test_the_longest_evaluation_holds_the_version() -> None:
    held = HeldSamples()
    assert held.version_held_until() is None
    held.add(sample("a"))
    held.add(sample("b", exactly=3, until=50.0))
    held.add(sample("c", exactly=3, until=70.0))
    assert held.version_held_until() == 70.0


def test_a_grant_becomes_one_assignment_per_sample() -> None:
    grant = pb.LeaseGrant(
        lease_id="a",
        kind=common_pb2.LEASE_KIND_EVAL,
        ticket=common_pb2.TicketId(epoch=1, ordinal=9),
        row=4,
        samples=[
            pb.SampleSlot(index=2, attempt=1),
            pb.SampleSlot(index=3, partial=common_pb2.EntryRef(entry_id="1-0")),
        ],
        constraint=pb.VersionConstraint(exactly=True, version=6, until=8.0),
        predicted_tokens=77,
    )
    first, second = assignments(grant)
    assert (first.kind, first.ticket, first.row, first.exactly, first.until) == (
        LeaseKind.EVAL,
        TicketId(1, 9),
        4,
        6,
        8.0,
    )
    assert (first.index, first.attempt, first.partial, first.predicted_tokens) == (2, 1, None, 77)
    assert second.partial is not None
    assert first.request_id != second.request_id


@given(grace_s=st.floats(0.0, 86_400.0))
def test_a_grace_leaves_time_to_hand_over_and_to_end(grace_s: float) -> None:
    grace = Grace.of(grace_s)
    assert 0.0 <= grace.finish_s <= grace.hand_over_s <= grace_s
    assert grace.finish_s >= 0.59 * grace_s
    assert grace.at_once().finish_s == 0.0
    assert 1.0 <= grace.at_once().hand_over_s <= 10.0


async def test_items_that_pile_up_go_with_the_next_call_and_survive_a_scheduler_that_is_away() -> None:
    calls: list[list[int]] = []
    gate = asyncio.Event()

    async def send(items: list[int]) -> list[int]:
        calls.append(list(items))
        await gate.wait()
        if len(calls) == 2:
            raise SchedulerUnavailable("away")
        return [item * 10 for item in items]

    batches: Batches[int, int] = Batches(send)  # type: ignore[arg-type]
    loop = asyncio.create_task(batches.run())
    first = asyncio.create_task(batches.submit(1))
    await eventually(lambda: calls)
    others = [asyncio.create_task(batches.submit(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    others[2].cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(first, *others[:2]) == [10, 20, 30]
    assert calls == [[1], [2, 3], [2, 3]]
    loop.cancel()
