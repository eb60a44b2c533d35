"""A replica that leaves hands its tokens over, and another one goes on from them, token by token."""

from itertools import pairwise
from typing import Any

import numpy as np
from drumroll_proto.v1 import journal_pb2
from drumroll_rollout.engine import Engine, GenerationRequest
from drumroll_rollout.fake_scheduler import FakeScheduler, Work
from drumroll_rollout.faulty_engine import Fault, FaultyEngine
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens

from drumroll.samples import FinishReason
from drumroll.testing import eventually

EOS = 2
LONG = ReplayLengths(0, given=(2000,))


async def running_tokens(scheduler: FakeScheduler, at_least: int) -> None:
    """Wait until every live lease has made some tokens."""
    await eventually(
        lambda: (
            scheduler.heard.heartbeats
            and len(scheduler.heard.heartbeats[-1].leases) == len(scheduler.leases) > 0
            and all(lease.tokens_done >= at_least for lease in scheduler.heard.heartbeats[-1].leases)
        )
    )


async def test_partials_are_continued_by_another_replica_without_a_token_lost(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    """V8 and T2 (b): tokens, log-probabilities, masks and segments of both parts agree; ids, never text."""
    scheduler.add(*(Work(0, index) for index in range(4)))
    first = await start_replica("rollout-0", tokens=LONG, step_seconds=0.005)
    await running_tokens(scheduler, 50)
    first.worker.drain()
    await first.finish()
    backs = list(scheduler.heard.hand_backs)
    assert {back.reason for back in backs} == {journal_pb2.RETURN_REASON_DRAINED}
    assert scheduler.heard.left == ["rollout-0"]
    assert first.worker.counters.tokens_lost == 0
    assert first.worker.counters.tokens_handed_over == sum(back.partial.num_tokens for back in backs) > 200
    assert scheduler.heard.heartbeats[-1].draining

    second = await start_replica("rollout-1", tokens=LONG, step_seconds=0.0002)
    await eventually(lambda: len(scheduler.heard.reports) == 4)
    assert second.worker.counters.tokens_reported + first.worker.counters.tokens_handed_over == 4 * 2000
    handed = {back.sample.index: back.partial for back in backs}
    for report in scheduler.heard.reports:
        payload = await reader.sample(report.entry)
        (sequence,) = payload.sequences
        ids, logprobs = ReplayTokens(0, range(20, 100)).draw(0, report.sample.index, 0, 2000)
        assert sequence.prompt_ids.tolist() == [10, 11, 0]
        assert sequence.completion_ids.tolist() == [*ids[:-1], EOS]
        np.testing.assert_array_equal(sequence.logprobs, np.asarray(logprobs, np.float32))
        assert sequence.loss_mask.tolist() == [1] * 2000
        cut = handed[report.sample.index].num_tokens
        spans = [(s.version, s.replica, s.start, s.end) for s in sequence.segments]
        assert spans == [(0, "rollout-0", 0, cut), (0, "rollout-1", cut, 2000)]
        assert (sequence.finish_reason, payload.actual_tokens, report.num_tokens) == (FinishReason.STOP, 2000, 2000)


class Spy:
    """Writes down what an engine is asked."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: list[GenerationRequest] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def generate(self, request: GenerationRequest) -> Any:
        self.requests.append(request)
        return self.engine.generate(request)


async def test_the_second_replica_is_prompted_with_prompt_and_tokens(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    """T2 (b): what was A and B stays A and B in the second replica's prompt."""
    scheduler.add(Work(3))
    first = await start_replica("rollout-0", tokens=LONG, step_seconds=0.005, vocabulary=(50, 51))
    await running_tokens(scheduler, 10)
    first.worker.drain()
    await first.finish()
    (back,) = scheduler.heard.hand_backs
    part = (await reader.partial(back.partial)).sequences[0]
    assert part.finish_reason is FinishReason.DRAINED
    second = await start_replica("rollout-1", tokens=LONG, step_seconds=0.0, vocabulary=(50, 51), wrap=Spy)
    await eventually(lambda: scheduler.heard.reports)
    (asked,) = second.engine.requests
    assert list(asked.prompt_ids) == [10, 11, 3, *part.completion_ids.tolist()]
    assert asked.done_tokens == back.partial.num_tokens
    assert asked.sampling.max_tokens == 4000 - back.partial.num_tokens


async def test_a_drain_finishes_what_it_can(scheduler: FakeScheduler, start_replica: Any) -> None:
    lengths = ReplayLengths(0, by_row={0: (150,), 1: (3000,)})
    scheduler.add(Work(0), Work(1))
    replica = await start_replica(tokens=lengths, step_seconds=0.004)
    await running_tokens(scheduler, 10)
    replica.worker.drain()
    await replica.finish()
    assert [report.sample.ticket.ordinal for report in scheduler.heard.reports] == [0]
    assert [back.sample.ticket.ordinal for back in scheduler.heard.hand_backs] == [1]
    assert replica.worker.counters.tokens_lost == 0


async def test_the_scheduler_may_ask_for_a_drain(scheduler: FakeScheduler, start_replica: Any) -> None:
    scheduler.add(Work(0))
    replica = await start_replica(tokens=LONG, step_seconds=0.01)
    await running_tokens(scheduler, 5)
    scheduler.drain.add("rollout-0")
    await replica.finish()
    assert len(scheduler.heard.hand_backs) == 1
    assert replica.worker.counters.tokens_lost == 0


async def test_a_sample_that_never_answers_does_not_hold_up_a_drain(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    scheduler.add(Work(0), Work(1))
    replica = await start_replica(
        tokens=LONG, step_seconds=0.01, wrap=lambda engine: FaultyEngine(engine, {(1, 0): [Fault.NEVER_ANSWERS]})
    )
    await eventually(lambda: len(scheduler.leases) == 2 and replica.engine.stats().running == 1)
    replica.worker.drain()
    await replica.finish()
    kept = {back.sample.ticket.ordinal: back.HasField("partial") for back in scheduler.heard.hand_backs}
    assert kept == {0: True, 1: False}
    assert replica.worker.counters.tokens_lost == 0


async def test_a_whole_answer_whose_reward_is_missing_is_scored_and_not_generated_again(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    scheduler.add(Work(0))
    first = await start_replica("rollout-0", tokens=40)
    first.scorer.stuck = True
    await eventually(lambda: scheduler.leases and first.engine.stats().tokens_total == 40)
    first.worker.drain()
    await first.finish()
    (back,) = scheduler.heard.hand_backs
    assert (await reader.partial(back.partial)).sequences[0].finish_reason is FinishReason.STOP
    second = await start_replica("rollout-1", tokens=40)
    await eventually(lambda: scheduler.heard.reports)
    report = scheduler.heard.reports[0]
    assert (report.num_tokens, report.reward, report.finished) == (40, 40.0, True)
    assert second.engine.stats().tokens_total == 0
    payload = await reader.sample(report.entry)
    assert [segment.replica for segment in payload.sequences[0].segments] == ["rollout-0"]


async def test_a_partial_that_is_gone_is_begun_anew(
    scheduler: FakeScheduler, start_replica: Any, stream: Any, reader: Any
) -> None:
    scheduler.add(Work(0))
    first = await start_replica("rollout-0", tokens=LONG, step_seconds=0.005)
    await running_tokens(scheduler, 10)
    first.worker.drain()
    await first.finish()
    await stream.delete([scheduler.heard.hand_backs[0].partial.entry_id])
    await start_replica("rollout-1", tokens=LONG, step_seconds=0.0)
    await eventually(lambda: scheduler.heard.reports)
    payload = await reader.sample(scheduler.heard.reports[0].entry)
    assert [segment.replica for segment in payload.sequences[0].segments] == ["rollout-1"]
    assert payload.actual_tokens == 2000


async def test_tokens_are_handed_over_every_so_often_where_that_is_asked_for(
    job: Any, scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    """`rollout.partialEveryTokens`: a killed replica loses no more than these."""
    spec = job.spec.rollout.model_copy(update={"partial_every_tokens": 600})
    scheduler.add(Work(0))
    replica = await start_replica(tokens=LONG, step_seconds=0.0001, rollout=spec)
    await eventually(lambda: scheduler.heard.reports)
    kept = [back.partial.num_tokens for back in scheduler.heard.hand_backs]
    assert all(600 <= second - first < 1000 for first, second in pairwise([0, *kept]))
    assert len(kept) >= 2
    assert {back.reason for back in scheduler.heard.hand_backs} == {journal_pb2.RETURN_REASON_DRAINED}
    sequence = (await reader.sample(scheduler.heard.reports[0].entry)).sequences[0]
    ids, _ = ReplayTokens(0, range(20, 100)).draw(0, 0, 0, 2000)
    assert sequence.completion_ids.tolist() == [*ids[:-1], EOS]
    assert [(segment.start, segment.end) for segment in sequence.segments] == [(0, 2000)]
    assert replica.worker.counters.tokens_lost == 0
