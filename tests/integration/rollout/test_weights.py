"""Weight updates while samples are being generated: pinned, verified, probed, attested; or the replica stops."""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

import pytest
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_rollout.engine import Engine
from drumroll_rollout.fake_scheduler import FakeScheduler, Work
from drumroll_rollout.faulty_engine import FaultyEngine
from drumroll_rollout.replay_lengths import ReplayLengths
from drumroll_rollout.weights_loop import WeightsRefused

from drumroll.testing import eventually

LONG = ReplayLengths(0, given=(1500,))


def attested(scheduler: FakeScheduler) -> list[int]:
    """Versions in the order in which heartbeats attested them."""
    told = [beat.attested_version for beat in scheduler.heard.heartbeats if beat.attested]
    return [version for place, version in enumerate(told) if place == 0 or told[place - 1] != version]


def most_tokens(scheduler: FakeScheduler) -> int:
    """Of any lease in any heartbeat so far."""
    return max((lease.tokens_done for beat in scheduler.heard.heartbeats for lease in beat.leases), default=0)


async def test_an_update_in_flight_makes_segments_and_pins_only_what_is_used(
    scheduler: FakeScheduler, start_replica: Any, versions: Any, reader: Any
) -> None:
    scheduler.add(Work(0), Work(1))
    await start_replica(tokens=LONG, step_seconds=0.001)
    await eventually(lambda: most_tokens(scheduler) > 100)
    scheduler.announce(1, versions.publish(1, lineage=1), lineage=1)
    await eventually(lambda: len(scheduler.heard.reports) == 2)
    for report in scheduler.heard.reports:
        payload = await reader.sample(report.entry)
        segments = payload.sequences[0].segments
        assert [(segment.version, segment.lineage) for segment in segments] == [(0, 0), (1, 1)]
        assert (report.oldest_version, report.newest_version) == (0, 1)
        assert (payload.oldest_version, payload.newest_version) == (0, 1)
    assert attested(scheduler) == [0, 1]
    assert scheduler.heard.pins == [("rollout-0", 0, False), ("rollout-0", 1, False), ("rollout-0", 0, True)]


async def test_nothing_is_leased_before_a_version_is_attested(
    scheduler: FakeScheduler, start_replica: Any, versions: Any
) -> None:
    scheduler.newest.Clear()
    scheduler.add(Work(0))
    await start_replica()
    await eventually(lambda: len(scheduler.heard.heartbeats) > 3)
    assert not scheduler.leases
    assert not any(beat.attested for beat in scheduler.heard.heartbeats)
    scheduler.announce(0, versions.sums[0])
    await eventually(lambda: scheduler.heard.reports)


async def test_a_version_that_is_not_visible_yet_is_waited_for(
    scheduler: FakeScheduler, start_replica: Any, versions: Any
) -> None:
    sha = versions.publish(5)
    path = versions.store.path(5)
    hidden = path.with_name("hidden")
    os.rename(path, hidden)
    scheduler.announce(5, sha)
    await start_replica()
    await eventually(lambda: ("rollout-0", 5, False) in scheduler.heard.pins)
    await eventually(lambda: len(scheduler.heard.heartbeats) > 3)
    assert not any(beat.attested for beat in scheduler.heard.heartbeats)
    os.rename(hidden, path)
    await eventually(lambda: attested(scheduler) == [5])


async def test_a_version_that_cannot_be_pinned_is_skipped(
    scheduler: FakeScheduler, start_replica: Any, versions: Any
) -> None:
    scheduler.unpinnable.add(0)
    await start_replica()
    await eventually(lambda: ("rollout-0", 0, False) in scheduler.heard.pins)
    scheduler.announce(1, versions.publish(1))
    await eventually(lambda: attested(scheduler) == [1])


def wrong_scores(*versions: int) -> Any:
    def wrap(engine: Engine) -> Engine:
        return FaultyEngine(engine, {}, wrong_scores=frozenset(versions))

    return wrap


async def test_a_failed_probe_stops_the_replica_and_nothing_of_that_version_leaves_it(
    scheduler: FakeScheduler, start_replica: Any, versions: Any, reader: Any
) -> None:
    scheduler.add(*(Work(0, index) for index in range(4)))
    replica = await start_replica(tokens=LONG, step_seconds=0.002, wrap=wrong_scores(1))
    await eventually(lambda: most_tokens(scheduler) > 50)
    scheduler.announce(1, versions.publish(1))
    with pytest.raises(WeightsRefused, match="logit probe of weight version 1 failed"):
        await replica.finish()
    assert not scheduler.heard.reports
    assert attested(scheduler) == [0]
    assert len(scheduler.heard.hand_backs) == 4
    for back in scheduler.heard.hand_backs:
        assert back.reason == journal_pb2.RETURN_REASON_DRAINED
        part = await reader.partial(back.partial)
        assert [segment.version for segment in part.sequences[0].segments] == [0]
    assert scheduler.heard.left == ["rollout-0"]


async def test_damaged_weights_stop_the_replica(scheduler: FakeScheduler, start_replica: Any, versions: Any) -> None:
    sha = versions.publish(1)
    file = versions.store.path(1) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    scheduler.announce(1, sha)
    replica = await start_replica()
    with pytest.raises(WeightsRefused, match="version 1 is damaged"):
        await replica.finish()
    assert not any(beat.attested for beat in scheduler.heard.heartbeats)


async def test_an_evaluation_holds_its_version_and_has_its_own_temperature(
    scheduler: FakeScheduler, start_replica: Any, versions: Any, reader: Any
) -> None:
    kind = common_pb2.LEASE_KIND_EVAL
    scheduler.add(Work(0, kind=kind, exactly=0, until=time.time() + 30.0))
    await start_replica(tokens=LONG, step_seconds=0.0005)
    await eventually(lambda: most_tokens(scheduler) > 50)
    scheduler.announce(1, versions.publish(1))
    await eventually(lambda: scheduler.heard.reports)
    payload = await reader.sample(scheduler.heard.reports[0].entry)
    assert [segment.version for segment in payload.sequences[0].segments] == [0]
    assert payload.sampling.temperature == 0.5
    await eventually(lambda: attested(scheduler) == [0, 1])


async def test_an_evaluation_holds_its_version_only_until_its_time(
    scheduler: FakeScheduler, start_replica: Any, versions: Any, reader: Any
) -> None:
    kind = common_pb2.LEASE_KIND_EVAL
    scheduler.add(Work(0, kind=kind, exactly=0, until=time.time() + 1.0))
    await start_replica(tokens=LONG, step_seconds=0.002)
    await eventually(lambda: most_tokens(scheduler) > 10)
    scheduler.announce(1, versions.publish(1))
    await eventually(lambda: scheduler.heard.reports)
    payload = await reader.sample(scheduler.heard.reports[0].entry)
    assert [segment.version for segment in payload.sequences[0].segments] == [0, 1]


async def test_an_evaluation_of_another_version_is_handed_back_unstarted(
    scheduler: FakeScheduler, start_replica: Any
) -> None:
    scheduler.add(Work(0, kind=common_pb2.LEASE_KIND_EVAL, exactly=7, until=time.time() + 30.0))
    await start_replica()
    await eventually(lambda: scheduler.heard.hand_backs)
    back = scheduler.heard.hand_backs[0]
    assert back.reason == journal_pb2.RETURN_REASON_UNSTARTED
    assert "version 7 is asked for, 0 is loaded" in back.detail


class SlowProbe:
    """An engine whose logit probe of version 1 waits for a gate."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        if self.engine.version == 1:
            await self.gate.wait()
        return await self.engine.score(token_ids)


async def test_answers_of_weights_that_are_being_probed_are_held_back(
    scheduler: FakeScheduler, start_replica: Any, versions: Any, stream: Any, reader: Any
) -> None:
    scheduler.add(Work(0), Work(1))
    replica = await start_replica(tokens=LONG, step_seconds=0.0005, wrap=SlowProbe)
    await eventually(lambda: most_tokens(scheduler) > 50)
    scheduler.announce(1, versions.publish(1))
    await eventually(lambda: replica.engine.stats().tokens_total == 2 * 1500)
    seen = len(scheduler.heard.heartbeats)
    await eventually(lambda: len(scheduler.heard.heartbeats) > seen + 5)
    assert not scheduler.heard.reports
    assert (await stream.usage()).entries == 0
    replica.engine.gate.set()
    await eventually(lambda: len(scheduler.heard.reports) == 2)
    assert [report.newest_version for report in scheduler.heard.reports] == [1, 1]


async def test_a_drain_during_a_probe_loses_no_token(
    scheduler: FakeScheduler, start_replica: Any, versions: Any, reader: Any
) -> None:
    scheduler.add(Work(0))
    replica = await start_replica(tokens=LONG, step_seconds=0.005, wrap=SlowProbe)
    await eventually(lambda: most_tokens(scheduler) > 50)
    scheduler.announce(1, versions.publish(1))
    await eventually(lambda: replica.engine.version == 1)
    made = replica.engine.stats().tokens_total
    await eventually(lambda: replica.engine.stats().tokens_total > made + 50)
    replica.worker.drain()
    await eventually(lambda: replica.engine.stats().running == 0)
    replica.engine.gate.set()
    await replica.finish()
    (back,) = scheduler.heard.hand_backs
    part = (await reader.partial(back.partial)).sequences[0]
    assert [segment.version for segment in part.segments] == [0, 1]
    assert part.num_completion_tokens == replica.engine.stats().tokens_total
    assert replica.worker.counters.tokens_lost == 0
