"""The sample stream on a real Valkey: who may do what, what is read, swept and counted."""

import asyncio
import os
import pickle
from pathlib import Path

import pytest
from drumroll_planner.entries import ENTRY_BYTES

from drumroll.embedded import EmbeddedStore
from drumroll.errors import CorruptError, ProtocolError, SampleLost, StoreLost, StoreUnavailable
from drumroll.samples import EntryKind, SampleId
from drumroll.store import command
from drumroll.stream import Entry, EntryRef, Fault, SampleStream


def sample(ordinal: int) -> SampleId:
    return SampleId(0, ordinal, 0, 0)


async def add(stream: SampleStream, ordinal: int, payload: bytes = b"p" * 100, **changes: EntryKind) -> EntryRef:
    kind = changes.get("kind", EntryKind.SAMPLE)
    return await stream.add(sample=sample(ordinal), lease_id="l", kind=kind, payload=payload)


async def test_the_trainer_reads_what_rollouts_added_in_the_order_it_asks_for(store: EmbeddedStore) -> None:
    rollout = SampleStream(store.connect("rollout"), "job-1")
    refs = [await add(rollout, number, b"%d" % number * 300_000) for number in range(40)]
    trainer = SampleStream(store.connect("trainer"), "job-1")
    entries = await trainer.read(refs[::-1])
    assert [entry.sample.ordinal for entry in entries] == list(range(39, -1, -1))
    assert [entry.ref for entry in entries] == refs[::-1]
    assert await trainer.read([]) == []


async def test_any_number_of_samples_may_end_at_once(store: EmbeddedStore) -> None:
    rollout = SampleStream(store.connect("rollout"), "job-1")
    refs = await asyncio.gather(*(add(rollout, number) for number in range(250)))
    found = await asyncio.gather(*(rollout.read([ref]) for ref in refs))
    assert [entry.sample.ordinal for (entry,) in found] == list(range(250))


async def test_partials_are_read_by_rollouts_and_are_no_samples(store: EmbeddedStore) -> None:
    rollout = SampleStream(store.connect("rollout"), "job-1")
    ref = await add(rollout, 0, kind=EntryKind.PARTIAL)
    (entry,) = await rollout.read([ref], kind=EntryKind.PARTIAL)
    assert entry.kind is EntryKind.PARTIAL
    with pytest.raises(CorruptError, match="it is a partial, a sample is wanted"):
        await rollout.read([ref])


async def test_roles_can_do_no_more_than_they_need(store: EmbeddedStore) -> None:
    rollout, trainer = (SampleStream(store.connect(role), "job-1") for role in ("rollout", "trainer"))
    ref = await add(rollout, 0)
    refused = [
        rollout.delete([ref.entry_id]),
        rollout.trim("9-0"),
        rollout.usage(),
        trainer.delete([ref.entry_id]),
        add(trainer, 1),
        add(SampleStream(store.connect("rollout"), "job-2"), 1),
        command(store.connect("rollout"), "GET", "drumroll:{job-1}:incarnation"),
        command(store.connect("trainer"), "XRANGE", "drumroll:{job-1}:journal", "-", "+"),
        command(store.connect("scheduler"), "FLUSHALL"),
        command(store.connect("scheduler"), "SET", "another", "key"),
        command(store.connect("scheduler"), "CONFIG", "SET", "appendonly", "no"),
    ]
    for call in refused:
        with pytest.raises(ProtocolError, match="does not allow"):
            await call
    assert len(await trainer.read([ref])) == 1


async def test_lost_and_damaged_entries_are_told_apart_and_named(store: EmbeddedStore) -> None:
    stream = SampleStream(store.connect("scheduler"), "job-1")
    refs = [await add(stream, number) for number in range(4)]
    await stream.delete([refs[1].entry_id])
    wrong_sum = EntryRef(refs[2].entry_id, b"0" * 32)
    found = await stream.inspect([refs[0], refs[1], wrong_sum, EntryRef("-", b""), EntryRef("+", b"")])
    assert [type(item) for item in found] == [Entry, Fault, Fault, Fault, Fault]
    assert [item.gone for item in found if isinstance(item, Fault)] == [True, False, False, False]
    with pytest.raises(SampleLost, match="2 of 3 entries cannot be had") as caught:
        await stream.read([refs[0], refs[1], wrong_sum])
    assert caught.value.entry_ids == (refs[1].entry_id, refs[2].entry_id)
    with pytest.raises(CorruptError, match="not the one that was reported"):
        await stream.read([refs[0], wrong_sum])


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


async def test_foreign_bytes_in_the_stream_run_nothing_and_harm_no_other_entry_s2(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    rollout = store.connect("rollout")
    stream = SampleStream(rollout, "job-1", max_payload_bytes=1000)
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    bad = [
        EntryRef((await command(rollout, "XADD", stream.key, "*", *fields)).decode(), b"0" * 32)
        for fields in (("h", bomb, "p", bomb), ("h", os.urandom(200), "p", b""), ("data", bomb), ("h", b"", "p", b""))
    ]
    foreign = SampleStream(rollout, "job-2")
    foreign.key = stream.key
    bad += [await add(foreign, 0), await add(stream, 0, b"x" * 1001)]
    good = await add(stream, 1)
    found = await stream.inspect([*bad, good])
    assert [item.reason for item in found if isinstance(item, Fault)][-2:] == [
        "the entry belongs to job 'job-2', not to 'job-1'",
        "a payload of 1001 bytes, at most 1000 are allowed",
    ]
    assert [type(item) for item in found] == [Fault] * 6 + [Entry]
    assert not (tmp_path / "ran").exists()


async def test_sweeping_counts_the_orphans_and_keeps_the_young(store: EmbeddedStore) -> None:
    stream = SampleStream(store.connect("scheduler"), "job-1")
    refs = [await add(stream, number, b"x" * 20_000) for number in range(10)]
    usage = await stream.usage()
    assert (usage.entries, 200_000 < usage.bytes < 210_000) == (10, True)
    assert await stream.delete([ref.entry_id for ref in refs[:3]]) == 3
    assert await stream.delete([refs[0].entry_id]) == 0
    assert await stream.delete([]) == 0
    assert await stream.trim(refs[7].entry_id, keep_s=60.0) == 0
    assert await stream.trim(refs[7].entry_id) == 4
    assert await stream.trim(refs[7].entry_id) == 0
    assert len(await stream.read(refs[7:])) == 3
    with pytest.raises(CorruptError, match="not an entry id"):
        await stream.trim("+")


async def test_an_entry_takes_no_more_beside_its_payload_than_back_pressure_counts(store: EmbeddedStore) -> None:
    stream = SampleStream(store.connect("scheduler"), "job-1")
    for size in (150, 2000, 9000):
        before = (await stream.usage()).bytes
        await asyncio.gather(*(add(stream, number, os.urandom(size)) for number in range(500)))
        assert (await stream.usage()).bytes - before <= 500 * (size + ENTRY_BYTES)


async def test_an_empty_stream_takes_nothing(store: EmbeddedStore) -> None:
    usage = await SampleStream(store.connect("scheduler"), "job-1").usage()
    assert (usage.bytes, usage.entries) == (0, 0)


async def test_a_full_store_asks_for_patience_and_loses_nothing(store: EmbeddedStore) -> None:
    admin = store.connect("admin")
    stream = SampleStream(store.connect("rollout"), "job-1")
    ref = await add(stream, 0)
    await command(admin, "CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="is full"):
        await add(stream, 1)
    assert len(await stream.read([ref])) == 1


async def test_a_key_of_another_type_is_a_lost_store(store: EmbeddedStore) -> None:
    stream = SampleStream(store.connect("scheduler"), "job-1")
    await command(store.connect("admin"), "SET", stream.key, "text")
    with pytest.raises(StoreLost, match="something else"):
        await add(stream, 0)


async def test_a_replica_or_a_loading_store_asks_for_patience(store: EmbeddedStore) -> None:
    await command(store.connect("admin"), "REPLICAOF", "127.0.0.1", store.settings.port)
    with pytest.raises(StoreUnavailable, match="read-only"):
        await add(SampleStream(store.connect("rollout"), "job-1"), 0)
