"""Properties of stream and ledger under crashes between any two writes, two writers, and lost replies.

Each example has a Valkey of its own, behind proxies that lose what Hypothesis tells them to.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumroll.embedded import EmbeddedStore
from drumroll.errors import Fenced, StoreUnavailable
from drumroll.faults import Fate, LossyProxy
from drumroll.ledger import Ledger
from drumroll.samples import EntryKind, SampleId
from drumroll.store import Redis, command, retrying
from drumroll.stream import EntryRef, SampleStream

SLOW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
FATES = st.lists(
    st.sampled_from([*[Fate.PASS] * 4, *[Fate.LOSE_REPLY, Fate.LOSE_REQUEST] * 3, Fate.STALL]), max_size=12
)


@dataclass
class Fates:
    """Fates of writes, in order; when they are used up, all pass. Connecting is left alone."""

    drawn: list[Fate]
    names: tuple[str, ...] = ("EVAL", "WAITAOF", "XADD", "XRANGE")

    def __call__(self, name: str) -> Fate:
        return self.drawn.pop(0) if name in self.names and self.drawn else Fate.PASS


def with_store(scenario: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with EmbeddedStore(Path(directory), "job-1") as store:
                await scenario(store)

    asyncio.run(run())


async def surely(call: Callable[[], Awaitable[int]]) -> int:
    return await retrying(call, deadline_s=90.0, first_pause_s=0.005, longest_pause_s=0.05)


async def open_ledger(redis: Redis) -> Ledger:
    return await retrying(
        lambda: Ledger.open(redis, "job-1"), deadline_s=90.0, first_pause_s=0.005, longest_pause_s=0.05
    )


async def all_entries(store: EmbeddedStore) -> list[tuple[int, bytes]]:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    # The snapshots of these tests are the joined entries that they replace.
    kept = ledger.snapshot.split(b",") if ledger.snapshot else []
    return list(enumerate(kept, start=1)) + ledger.entries


APPENDS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("crash"), st.integers(0, 12)),
        st.tuples(st.just("kill"), st.integers(0, 6)),
        st.tuples(st.just("snapshot"), st.floats(0, 1)),
    ),
    max_size=16,
)


@dataclass
class Writer:
    """Does what a scheduler does: retries, and opens the ledger again after its own crash."""

    store: EmbeddedStore
    redis: Redis
    ledger: Ledger
    written: list[bytes] = field(default_factory=list)
    number: int = 0

    def next(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    async def append(self, data: bytes, *, sync: bool = False) -> None:
        await surely(lambda: self.ledger.append(data, sync=sync))
        self.written.append(data)

    async def cut_short(self, data: bytes, turns: int) -> None:
        """End the appending task after some turns of the event loop."""
        task = asyncio.ensure_future(self.ledger.append(data))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def run(self, action: str, value: float) -> None:
        if action == "append":
            await self.append(self.next(), sync=bool(value))
        elif action == "cancel":
            data = self.next()
            await self.cut_short(data, int(value))
            if self.ledger.last_seq == len(self.written):
                await self.append(data)
            else:
                self.written.append(data)
        elif action == "crash":
            data = self.next()
            await self.cut_short(data, int(value))
            self.ledger = await open_ledger(self.redis)
            assert self.ledger.last_seq - len(self.written) in (0, 1)
            self.written += [data] * (self.ledger.last_seq - len(self.written))
        elif action == "kill":
            data = self.next()
            await self.cut_short(data, int(value)) if value < 3 else None
            await self.store.kill()
            await self.store.start()
            if self.ledger.last_seq == len(self.written):
                await self.append(data)
            else:
                self.written.append(data)
        else:
            upto = self.ledger.snapshot_seq + int(value * (self.ledger.last_seq - self.ledger.snapshot_seq))
            kept = b",".join(self.written[:upto])
            await retrying(lambda: self.ledger.write_snapshot(kept, upto), deadline_s=90.0, first_pause_s=0.005)


@SLOW
@given(APPENDS, FATES)
def test_crashes_between_any_two_writes_lose_no_acknowledged_entry(
    actions: list[tuple[str, float]], fates: list[Fate]
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        async with LossyProxy(store.settings.port, Fates(list(fates))) as proxy:
            redis = store.connect("scheduler", port=proxy.port, timeout_s=0.5)
            writer = Writer(store, redis, await open_ledger(redis))
            for action, value in actions:
                await writer.run(action, value)
            await writer.append(b"last", sync=True)
        assert await all_entries(store) == list(enumerate(writer.written, start=1))

    with_store(scenario)


@SLOW
@given(st.lists(FATES, min_size=2, max_size=3), st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_of_writers_at_once_only_the_newest_appends_and_the_journal_stays_gapless(
    fates: list[list[Fate]], spans: list[int]
) -> None:
    """Each writer takes over, appends until it is fenced (or has had its span), and takes over again."""
    acknowledged: dict[int, bytes] = {}
    sent: set[bytes] = set()

    async def write(name: int, redis: Redis) -> None:
        for turn, span in enumerate(spans):
            try:
                ledger = await open_ledger(redis)
            except Fenced:
                continue
            for number in range(span):
                data = b"%d of turn %d by %d" % (number, turn, name)
                sent.add(data)
                try:
                    seq = await surely(lambda: ledger.append(data))  # noqa: B023 - awaited before the next turn
                except Fenced:
                    break
                assert seq not in acknowledged
                acknowledged[seq] = data

    async def scenario(store: EmbeddedStore) -> None:
        async with AsyncExitStack() as stack:
            judges = [Fates(list(drawn)) for drawn in fates]
            proxies = [await stack.enter_async_context(LossyProxy(store.settings.port, judge)) for judge in judges]
            clients = [store.connect("scheduler", port=proxy.port, timeout_s=0.5) for proxy in proxies]
            await asyncio.gather(*(write(name, client) for name, client in enumerate(clients)))
        entries = await all_entries(store)
        assert [seq for seq, _ in entries] == list(range(1, len(entries) + 1))
        assert len({data for _, data in entries}) == len(entries)
        assert {data for _, data in entries} <= sent
        assert acknowledged.items() <= dict(entries).items()

    with_store(scenario)


@SLOW
@given(FATES, st.sets(st.integers(0, 19), max_size=3), st.integers(1, 4))
def test_samples_that_were_acknowledged_are_read_whatever_was_lost_and_the_rest_is_swept(
    fates: list[Fate], kills: set[int], num_adders: int
) -> None:
    async def scenario(store: EmbeddedStore) -> None:
        accepted: dict[int, EntryRef] = {}
        todo = iter(range(20))

        async def add(stream: SampleStream) -> None:
            for number in todo:
                if number in kills:
                    await store.kill()
                    await store.start()
                accepted[number] = await retrying(
                    lambda: stream.add(
                        sample=SampleId(0, number, 0, 0),  # noqa: B023
                        lease_id="l",
                        kind=EntryKind.SAMPLE,
                        payload=b"%d" % number * 1000,  # noqa: B023
                    ),
                    deadline_s=90.0,
                    first_pause_s=0.005,
                )

        async with LossyProxy(store.settings.port, Fates(list(fates))) as proxy:
            clients = [store.connect("rollout", port=proxy.port, timeout_s=0.5) for _ in range(num_adders)]
            # One at a time may restart the server.
            adders = [SampleStream(client, "job-1") for client in clients]
            await asyncio.gather(*(add(stream) for stream in (adders[:1] if kills else adders)))
        stream = SampleStream(store.connect("scheduler"), "job-1")
        refs = [accepted[number] for number in range(20)]
        entries = await stream.read(refs)
        assert [entry.sample.ordinal for entry in entries] == list(range(20))
        orphans = (await stream.usage()).entries - 20
        assert 0 <= orphans <= proxy.lost
        assert await stream.delete([ref.entry_id for ref in refs]) == 20
        assert await stream.trim(f"{2**63}-0") == orphans
        assert (await stream.usage()).entries == 0

    with_store(scenario)


async def test_an_append_to_a_store_that_is_down_waits_for_it(tmp_path: Path) -> None:
    async with EmbeddedStore(tmp_path, "job-1") as store:
        ledger = await Ledger.open(store.connect("scheduler"), "job-1")
        await store.kill()
        waiting = asyncio.ensure_future(surely(lambda: ledger.append(b"1", sync=True)))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        await store.start()
        assert await waiting == 1


async def test_a_proxy_before_nothing_ends_the_connection(tmp_path: Path) -> None:
    async with EmbeddedStore(tmp_path, "job-1") as store, LossyProxy(store.settings.port, Fates([])) as proxy:
        client = store.connect("rollout", port=proxy.port)
        await store.kill()
        with pytest.raises(StoreUnavailable):
            await command(client, "PING")
