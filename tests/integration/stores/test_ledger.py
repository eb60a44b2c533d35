"""The ledger on a real Valkey: fencing, snapshots, what happens when the store comes back with less."""

import asyncio
import shutil
from pathlib import Path

import pytest

from drumroll.embedded import EmbeddedStore
from drumroll.errors import CorruptError, Fenced, ProtocolError, StoreLost, StoreUnavailable, UserError
from drumroll.faults import Fate, LossyProxy
from drumroll.ledger import Ledger, read_segments, write_segment
from drumroll.samples import EntryKind, SampleId
from drumroll.store import check, command, require_sound
from drumroll.stream import SampleStream


async def test_a_successor_reads_what_was_appended_and_fences_the_old_writer(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    old = await Ledger.open(redis, "job-1")
    assert (old.incarnation, old.last_seq, old.snapshot, old.entries) == (1, 0, None, [])
    assert [await old.append(b"%d" % n, sync=n % 2 == 0) for n in range(1200)] == list(range(1, 1201))
    new = await Ledger.open(redis, "job-1")
    assert (new.incarnation, new.last_seq) == (2, 1200)
    assert new.entries == [(n + 1, b"%d" % n) for n in range(1200)]
    for call in (old.append(b"x"), old.append(b"x", sync=True), old.check(), old.write_snapshot(b"", 5)):
        with pytest.raises((Fenced, ProtocolError)):
            await call
    assert await new.append(b"next") == 1201


async def test_fenced_says_who_took_over(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    old = await Ledger.open(redis, "job-1")
    await Ledger.open(redis, "job-1", floor=40)
    with pytest.raises(Fenced, match="incarnation 1 was replaced by 41"):
        await old.append(b"x")


async def test_a_snapshot_replaces_what_it_holds_and_survives_a_kill(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    ledger = await Ledger.open(redis, "job-1")
    for number in range(1, 11):
        await ledger.append(b"%d" % number)
    for upto in (11, -1):
        with pytest.raises(ProtocolError, match="a snapshot up to"):
            await ledger.write_snapshot(b"s", upto)
    await ledger.write_snapshot(b"up to 7", 7)
    with pytest.raises(StoreLost, match=r"entry 7 is missing; the next one is 8-0"):
        await ledger.read(7)
    await store.kill()
    await store.start()
    again = await Ledger.open(redis, "job-1")
    assert (again.snapshot, again.snapshot_seq, again.last_seq) == (b"up to 7", 7, 10)
    assert again.entries == [(8, b"8"), (9, b"9"), (10, b"10")]
    await again.write_snapshot(b"all", 10)
    assert await again.append(b"11") == 11
    last = await Ledger.open(redis, "job-1")
    assert (last.snapshot, last.entries) == (b"all", [(11, b"11")])


async def test_closed_entries_are_archived_and_read_back(store: EmbeddedStore, tmp_path: Path) -> None:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    for number in range(1, 6):
        await ledger.append(b"%d" % number)
    write_segment(tmp_path / "journal", await ledger.read(1, 3))
    await ledger.write_snapshot(b"", 3)
    write_segment(tmp_path / "journal", await ledger.read(4))
    assert read_segments(tmp_path / "journal") == [(n, b"%d" % n) for n in range(1, 6)]


@pytest.mark.parametrize("sync", [False, True])
async def test_flushall_is_found_by_the_next_append_x4(store: EmbeddedStore, sync: bool) -> None:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    await ledger.append(b"1")
    await command(store.connect("admin"), "FLUSHALL")
    with pytest.raises(StoreLost, match="its incarnation is gone"):
        await ledger.append(b"2", sync=sync)
    with pytest.raises(StoreLost):
        await ledger.check()


async def test_a_deleted_journal_or_incarnation_is_found_x4(store: EmbeddedStore) -> None:
    admin, redis = store.connect("admin"), store.connect("scheduler")
    ledger = await Ledger.open(redis, "job-1")
    await ledger.append(b"1")
    await command(admin, "DEL", "drumroll:{job-1}:journal")
    with pytest.raises(StoreLost, match="the journal is gone"):
        await ledger.append(b"2")
    with pytest.raises(StoreLost):
        await Ledger.open(redis, "job-1")
    await command(admin, "XADD", "drumroll:{job-1}:journal", "5-0", "d", "")
    with pytest.raises(StoreLost, match=r"entries 1\.\.1 are missing"):
        await Ledger.open(redis, "job-1")
    await command(admin, "DEL", "drumroll:{job-1}:incarnation")
    with pytest.raises(StoreLost, match="its incarnation is gone"):
        await Ledger.open(redis, "job-1")


async def test_a_lost_snapshot_is_found_when_the_ledger_is_opened_x4(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    ledger = await Ledger.open(redis, "job-1")
    for data in (b"1", b"2"):
        await ledger.append(data)
    await ledger.write_snapshot(b"s", 2)
    await command(store.connect("admin"), "DEL", "drumroll:{job-1}:snapshot")
    with pytest.raises(StoreLost, match=r"entries 1\.\.2 are missing"):
        await Ledger.open(redis, "job-1")


async def test_a_store_without_a_file_is_reported_and_its_restart_is_found_x4(tmp_path: Path) -> None:
    async with EmbeddedStore(tmp_path, "job-1", persistent=False) as store:
        redis = store.connect("scheduler")
        health = await check(redis)
        assert health.appendonly is False
        with pytest.raises(UserError, match="no append-only file"):
            require_sound(health)
        ledger = await Ledger.open(redis, "job-1")
        await ledger.append(b"1")
        with pytest.raises(UserError, match="no append-only file"):
            await ledger.append(b"2", sync=True)
        await store.kill()
        await store.start()
        with pytest.raises(StoreLost):
            await ledger.append(b"2")


async def test_a_store_that_went_back_in_time_is_found_x4(store: EmbeddedStore, tmp_path: Path) -> None:
    redis, data = store.connect("scheduler"), store.directory / "appendonlydir"
    first = await Ledger.open(redis, "job-1")
    for number in range(3):
        await first.append(b"%d" % number)
    shutil.copytree(data, tmp_path / "before")
    await first.append(b"3")
    await go_back(store, tmp_path / "before")
    with pytest.raises(StoreLost, match="the journal ends at entry 3, expected 4"):
        await first.append(b"4")
    second = await Ledger.open(redis, "job-1")
    await go_back(store, tmp_path / "before")
    with pytest.raises(StoreLost, match="it went back to incarnation 1"):
        await second.append(b"x")


async def go_back(store: EmbeddedStore, saved: Path) -> None:
    await store.kill()
    shutil.rmtree(store.directory / "appendonlydir")
    shutil.copytree(saved, store.directory / "appendonlydir")
    await store.start()


async def test_a_lost_ledger_is_rebuilt_from_a_checkpoint_s_snapshot(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    ledger = await Ledger.open(redis, "job-1", floor=6)
    await ledger.append(b"1")
    await command(store.connect("admin"), "FLUSHALL")
    rebuilt = await Ledger.rebuild(redis, "job-1", snapshot=b"from the checkpoint", upto_seq=30, floor=7)
    assert (rebuilt.incarnation, rebuilt.last_seq, rebuilt.snapshot) == (8, 30, b"from the checkpoint")
    with pytest.raises(Fenced):
        await ledger.append(b"2")
    assert await rebuilt.append(b"31") == 31
    after = await Ledger.open(redis, "job-1")
    assert (after.snapshot_seq, after.entries) == (30, [(31, b"31")])
    empty = await Ledger.rebuild(redis, "job-1", snapshot=b"", upto_seq=0, floor=0)
    assert await empty.append(b"1") == 1


async def test_an_entry_with_a_wrong_sum_is_refused(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    ledger = await Ledger.open(redis, "job-1")
    await ledger.append(b"1")
    admin = store.connect("admin")
    await command(admin, "DEL", "drumroll:{job-1}:journal")
    await command(admin, "XADD", "drumroll:{job-1}:journal", "1-0", "d", "2", "s", "?")
    with pytest.raises(CorruptError, match="entry 1 does not have the sum"):
        await Ledger.open(redis, "job-1")


async def test_a_journal_that_someone_else_wrote_to_is_found_x4(store: EmbeddedStore) -> None:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    await ledger.append(b"1")
    await command(store.connect("admin"), "XADD", "drumroll:{job-1}:journal", "5-0", "d", "")
    with pytest.raises(StoreLost, match="the journal does not end at entry 1"):
        await ledger.append(b"2")


async def test_an_append_of_unknown_outcome_must_be_repeated_before_another(store: EmbeddedStore) -> None:
    fates = dict.fromkeys(["PING", "EVAL", "WAITAOF"], Fate.PASS)
    async with LossyProxy(store.settings.port, lambda name: fates.get(name, Fate.PASS)) as proxy:
        ledger = await Ledger.open(store.connect("scheduler", port=proxy.port), "job-1")
        fates["EVAL"] = Fate.LOSE_REPLY
        with pytest.raises(StoreUnavailable):
            await ledger.append(b"1")
        fates["EVAL"] = Fate.PASS
        with pytest.raises(ProtocolError, match="outcome of entry 1 is open"):
            await ledger.append(b"other")
        await ledger.write_snapshot(b"", 0)
        assert await ledger.append(b"1", sync=True) == 1
        assert await ledger.append(b"2") == 2
    assert (await Ledger.open(store.connect("scheduler"), "job-1")).entries == [(1, b"1"), (2, b"2")]


async def test_another_writer_under_the_same_incarnation_is_found(store: EmbeddedStore) -> None:
    redis = store.connect("scheduler")
    one = await Ledger.open(redis, "job-1")
    other = Ledger(redis, "job-1", one.incarnation)
    await one.append(b"mine")
    with pytest.raises(Fenced, match="another writer"):
        await other.append(b"other")


async def test_appends_of_many_tasks_get_numbers_of_their_own(store: EmbeddedStore) -> None:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    numbers = await asyncio.gather(*(ledger.append(b"%d" % n) for n in range(50)))
    assert sorted(numbers) == list(range(1, 51))


async def test_a_store_full_of_samples_still_takes_the_ledger(store: EmbeddedStore) -> None:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    await command(store.connect("admin"), "CONFIG", "SET", "maxmemory", 1)
    stream = SampleStream(store.connect("rollout"), "job-1")
    with pytest.raises(StoreUnavailable, match="is full"):
        await stream.add(sample=SampleId(0, 0, 0, 0), lease_id="l", kind=EntryKind.SAMPLE, payload=b"x")
    assert await ledger.append(b"y" * 100_000, sync=True) == 1
    await ledger.write_snapshot(b"z" * 100_000, 1)
    await ledger.check()


async def append_synced(ledger: Ledger, number: int) -> None:
    for _ in range(number):
        await ledger.append(b"x", sync=True)


async def test_a_sync_that_takes_too_long_is_not_taken_for_done(store: EmbeddedStore) -> None:
    ledger = await Ledger.open(store.connect("scheduler"), "job-1")
    ledger.sync_ms = 1
    await command(store.connect("admin"), "CONFIG", "SET", "appendfsync", "everysec")
    with pytest.raises(StoreUnavailable, match="did not sync within 1 ms"):
        await append_synced(ledger, 50)
    ledger.sync_ms = 5000
    assert await ledger.append(b"x", sync=True) == ledger.last_seq
