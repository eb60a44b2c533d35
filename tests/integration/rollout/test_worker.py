"""A replica's whole path: lease, generate by token ids, score, stream, report; and the ways in which calls get lost."""

from collections.abc import Callable
from typing import Any

import pytest
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_rollout.engine import Engine
from drumroll_rollout.fake_scheduler import FakeScheduler, Work
from drumroll_rollout.faulty_engine import Fault, FaultyEngine
from drumroll_rollout.production import EngineDead
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens
from drumroll_rollout.rewards import RewardCrash
from drumroll_rollout.session import OutOfService

from drumroll.errors import RewardError
from drumroll.samples import FinishReason
from drumroll.testing import eventually

EOS = 2


def group(row: int, size: int = 4) -> list[Work]:
    return [Work(row, index) for index in range(size)]


def faulty(faults: dict[tuple[int, int], list[Fault]]) -> Callable[[Engine], Engine]:
    return lambda engine: FaultyEngine(engine, faults)


async def test_leased_samples_are_streamed_and_then_reported(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    scheduler.add(*group(0), *group(1), *group(2))
    replica = await start_replica(tokens=30)
    await eventually(lambda: len(scheduler.heard.reports) == 12)
    for report in scheduler.heard.reports:
        payload = await reader.sample(report.entry)
        (sequence,) = payload.sequences
        row = report.sample.ticket.ordinal
        assert sequence.prompt_ids.tolist() == [10, 11, row]
        ids, logprobs = ReplayTokens(0, range(20, 100)).draw(row, report.sample.index, 0, 30)
        assert sequence.completion_ids.tolist() == [*ids[:-1], EOS]
        assert sequence.logprobs.tolist() == list(logprobs)
        assert sequence.loss_mask.tolist() == [1] * 30
        assert (report.num_tokens, report.reward, report.finished) == (30, 30.0, True)
        assert (report.oldest_version, report.newest_version) == (0, 0)
        assert (payload.row, payload.tokenizer_digest) == (row, "d" * 64)
    assert not scheduler.leases
    scheduler.finish()
    await replica.finish()
    assert replica.worker.counters.tokens_lost == 0
    assert replica.worker.counters.tokens_reported == 12 * 30


async def test_sampling_settings_as_applied_are_recorded_with_each_sample(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    """V6: ours, not those of a generation_config.json."""
    scheduler.add(Work(0))
    await start_replica()
    await eventually(lambda: scheduler.heard.reports)
    sampling = (await reader.sample(scheduler.heard.reports[0].entry)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (1.0, 1.0, 0, 1.0)
    assert (sampling.max_tokens, sampling.stop_token_ids) == (4000, (EOS,))


async def test_ids_reach_the_stream_though_their_text_encodes_to_another_id(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    """T2 (a): the engine emits "a" and "b" apart, the tokenizer would make one id of "ab"."""
    texts = {50: "a", 51: "b", 52: "ab", EOS: ""}
    scheduler.add(*group(0, 8))
    replica = await start_replica(
        tokens=40, vocabulary=(50, 51), decode=lambda ids: "".join(texts[token] for token in ids)
    )
    await eventually(lambda: len(scheduler.heard.reports) == 8)
    assert any("ab" in text for text in replica.scorer.texts)
    for report in scheduler.heard.reports:
        sequence = (await reader.sample(report.entry)).sequences[0]
        assert set(sequence.completion_ids.tolist()) == {50, 51, EOS}
        assert len(sequence.completion_ids) == len(sequence.logprobs) == len(sequence.loss_mask) == 40


async def test_an_answer_over_the_limit_is_reported_as_cut(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    scheduler.add(Work(0))
    replica = await start_replica(tokens=5000, step_seconds=0.0)
    await eventually(lambda: scheduler.heard.reports)
    report = scheduler.heard.reports[0]
    assert (report.num_tokens, report.finished) == (4000, False)
    assert (await reader.sample(report.entry)).sequences[0].finish_reason is FinishReason.LENGTH
    assert replica.scorer.finished == [False]


async def test_leases_lost_with_their_reply_are_found_by_the_heartbeat(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    scheduler.lose_lease_replies = 1
    scheduler.add(*group(0, 8))
    await start_replica()
    await eventually(lambda: len(scheduler.heard.reports) == 8)
    assert len({report.lease_id for report in scheduler.heard.reports}) == 8


async def test_an_aborted_lease_is_stopped_and_its_slot_used_again(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    """A2: a request that never answers makes no progress; the scheduler takes it back, the replica lets go."""
    scheduler.add(Work(5), *group(0))
    replica = await start_replica(wrap=faulty({(5, 0): [Fault.NEVER_ANSWERS]}))
    await eventually(lambda: len(scheduler.heard.reports) == 4)
    (lease_id,) = scheduler.leases

    def told() -> list[int]:
        beats = scheduler.heard.heartbeats
        return [lease.tokens_done for beat in beats for lease in beat.leases if lease.lease_id == lease_id]

    seen = len(told())
    await eventually(lambda: len(told()) >= seen + 4)
    assert len(set(told()[seen + 1 :])) == 1
    scheduler.abort(lease_id)
    scheduler.changed.set()
    await eventually(lambda: len(scheduler.heard.reports) == 5)
    assert scheduler.heard.reports[-1].sample.ticket.ordinal == 5
    assert not scheduler.heard.hand_backs
    assert replica.engine.stats().running == 0


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        (Fault.NAN_LOGPROBS, "token 0: log-probability nan"),
        (Fault.INFINITE_LOGPROB, "token 0: log-probability -inf"),
        (Fault.SHORT_LOGPROBS, "log-probabilities and"),
    ],
)
async def test_a_bad_sample_is_handed_back_and_never_streamed(
    scheduler: FakeScheduler, start_replica: Any, stream: Any, fault: Fault, detail: str
) -> None:
    """V4."""
    scheduler.add(*group(0))
    replica = await start_replica(wrap=faulty({(0, 2): [fault]}))
    await eventually(lambda: len(scheduler.heard.reports) == 4)
    (back,) = scheduler.heard.hand_backs
    assert back.reason == journal_pb2.RETURN_REASON_BAD_SAMPLE
    assert (back.sample.index, back.sample.attempt) == (2, 0)
    assert detail in back.detail
    assert not back.HasField("partial")
    assert [report.sample.attempt for report in scheduler.heard.reports if report.sample.index == 2] == [1]
    assert (await stream.usage()).entries == 4
    assert replica.worker.counters.bad_samples_total == 1
    await eventually(lambda: scheduler.heard.heartbeats[-1].gauges["bad_samples_total"] == 1)
    assert replica.engine.stats().running == 0


async def test_a_crash_of_the_grader_is_handed_back_and_not_a_wrong_answer(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    """R4."""
    replica = await start_replica()
    replica.scorer.errors[1] = [RewardCrash("the grader was killed")]
    scheduler.add(*group(0), *group(1))
    await eventually(lambda: len(scheduler.heard.reports) == 8)
    (back,) = scheduler.heard.hand_backs
    assert (back.reason, back.detail) == (journal_pb2.RETURN_REASON_REWARD_ERROR, "the grader was killed")
    assert all(report.reward == 30.0 for report in scheduler.heard.reports)
    assert replica.worker.counters.reward_errors_total == 1


async def test_a_broken_reward_contract_ends_the_replica_with_the_message(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    """R6: handed back, and then the process ends as a user's mistake."""
    replica = await start_replica()
    replica.scorer.errors[0] = [RewardError("my_rewards:score gave 1 reward, expected 4")]
    scheduler.add(Work(0))
    with pytest.raises(RewardError, match="my_rewards:score"):
        await replica.finish()
    back = scheduler.heard.hand_backs[0]
    assert back.reason == journal_pb2.RETURN_REASON_REWARD_ERROR
    assert back.detail == "reward contract: my_rewards:score gave 1 reward, expected 4"
    assert scheduler.heard.left == ["rollout-0"]


async def test_a_dead_engine_hands_its_tokens_back_and_ends_the_replica(
    scheduler: FakeScheduler, start_replica: Any, reader: Any
) -> None:
    scheduler.add(*group(0, 8))
    replica = await start_replica(tokens=200, wrap=faulty({(0, 3): [Fault.DIES]}))
    with pytest.raises(EngineDead, match="the engine is dead"):
        await replica.finish()
    assert not scheduler.leases
    engine_errors = [b for b in scheduler.heard.hand_backs if b.reason == journal_pb2.RETURN_REASON_ENGINE_ERROR]
    kept = [back.partial for back in engine_errors if back.HasField("partial")]
    assert kept
    for partial in kept:
        assert (await reader.partial(partial)).actual_tokens == partial.num_tokens > 0
    assert replica.worker.counters.tokens_lost == 0


async def test_a_forgotten_replica_registers_again(scheduler: FakeScheduler, start_replica: Any) -> None:
    await start_replica()
    await eventually(lambda: scheduler.heard.heartbeats)
    scheduler.forget("rollout-0")
    await eventually(lambda: len(scheduler.heard.registered) == 2)
    scheduler.add(*group(0))
    await eventually(lambda: len(scheduler.heard.reports) == 4)


async def test_a_replica_that_is_out_of_service_ends(scheduler: FakeScheduler, start_replica: Any) -> None:
    """V4: after N bad samples in a row; a fresh process takes its place."""
    replica = await start_replica()
    await eventually(lambda: scheduler.heard.heartbeats)
    scheduler.banned.add("rollout-0")
    scheduler.forget("rollout-0")
    with pytest.raises(OutOfService):
        await replica.finish()


async def test_a_scheduler_that_is_away_for_a_while_costs_no_sample(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    scheduler.add(*group(0, 8))
    replica = await start_replica(tokens=400, step_seconds=0.001)
    await eventually(lambda: len(scheduler.leases) == 8)
    scheduler.away = True
    await eventually(lambda: replica.engine.stats().tokens_total == 8 * 400)
    assert not scheduler.heard.reports
    scheduler.away = False
    await eventually(lambda: len(scheduler.heard.reports) == 8)
    assert not scheduler.heard.hand_backs


async def test_an_abort_that_crosses_a_report_does_not_undo_it(scheduler: FakeScheduler, start_replica: Any) -> None:
    """A heartbeat that was sent before the report names a lease that is over since: the scheduler says abort."""
    scheduler.hold_reports.clear()
    scheduler.add(Work(0))
    replica = await start_replica()
    await eventually(lambda: scheduler.heard.reports)
    lease_id = scheduler.heard.reports[0].lease_id
    scheduler.aborted.add(lease_id)
    seen = len(scheduler.heard.heartbeats)
    await eventually(lambda: len(scheduler.heard.heartbeats) > seen + 3)
    scheduler.hold_reports.set()
    await eventually(lambda: replica.worker.counters.samples_total == 1)
    assert replica.worker.counters.tokens_unwanted == 0


async def test_progress_is_told_lease_by_lease(scheduler: FakeScheduler, start_replica: Any) -> None:
    scheduler.add(Work(0), Work(1))
    await start_replica(tokens=ReplayLengths(0, by_row={0: (400,), 1: (4000,)}), step_seconds=0.001)
    await eventually(lambda: len(scheduler.heard.reports) == 1)
    told = [lease.tokens_done for beat in scheduler.heard.heartbeats for lease in beat.leases]
    assert len(set(told)) > 3
    await eventually(lambda: scheduler.heard.heartbeats[-1].gauges["tokens_total"] > 400)
    gauges = scheduler.heard.heartbeats[-1].gauges
    assert {"running", "waiting", "kv_usage", "samples_total", "tokens_lost", "reward_seconds"} <= set(gauges)


async def test_a_lease_of_an_unknown_kind_is_refused_by_name(scheduler: FakeScheduler, start_replica: Any) -> None:
    scheduler.add(Work(0, kind=common_pb2.LEASE_KIND_SCORE))
    replica = await start_replica()
    with pytest.raises(Exception, match="LEASE_KIND_SCORE"):
        await replica.finish()
