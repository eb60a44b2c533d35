"""Case X6: the store's primary is demoted with all connections open, and its name then points to the new one."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from drumroll_planner import records as r
from drumroll_scheduler.scripted_job import UID
from drumroll_scheduler.scripted_replica import Answer, ScriptedReplica
from drumroll_scheduler.scripted_trainer import ScriptedTrainer

from drumroll.embedded import EmbeddedStore
from drumroll.faults import Fate, LossyProxy
from drumroll.samples import EntryKind, SampleId
from drumroll.store import Redis, command
from drumroll.stream import SampleStream
from drumroll.testing import eventually

STEPS = 16
RESUME_S = 15.0


def slow(grant: Any) -> Answer:
    return Answer(num_tokens=4, reward=float(grant.samples[0].index), seconds=0.05)


async def info(admin: Redis, section: str) -> dict[str, Any]:
    found: dict[str, Any] = await admin.info(section)
    return found


async def follow(replica: Redis, primary: EmbeddedStore) -> None:
    """Make a server the replica of another, and wait until it has all."""
    password = primary.password_files["admin"].read_text().strip()
    for name, value in (("masteruser", "admin"), ("masterauth", password)):
        await command(replica, "CONFIG", "SET", name, value)
    await command(replica, "REPLICAOF", "127.0.0.1", primary.settings.port)

    async def linked() -> bool:
        return bool((await info(replica, "replication")).get("master_link_status") == "up")

    await eventually(linked, 20.0, "a replica that follows")


async def fail_over(old: EmbeddedStore, new: EmbeddedStore) -> None:
    """Promote the replica and demote the primary, as a careful operator of stores does: nothing written is lost."""
    first, second = old.connect("admin"), new.connect("admin")
    await command(first, "CLIENT", "PAUSE", 10_000, "WRITE")

    async def level() -> bool:
        sent = (await info(first, "replication"))["master_repl_offset"]
        return bool((await info(second, "replication"))["slave_repl_offset"] == sent)

    await eventually(level, 5.0, "a replica that has all")
    await command(second, "REPLICAOF", "NO", "ONE")
    await command(first, "REPLICAOF", "127.0.0.1", new.settings.port)
    await command(first, "CLIENT", "UNPAUSE")


@pytest.fixture
async def second(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    async with EmbeddedStore(tmp_path / "second", UID) as store:
        yield store


async def test_x6_a_demoted_primary_is_left_without_a_restart(make_world: Any, second: EmbeddedStore) -> None:
    world = await make_world(spec={"steps": STEPS}, num_prompts=2 * STEPS)
    first: EmbeddedStore = world.store
    await follow(second.connect("admin"), first)
    # Who asks now to be demoted must be able to follow, too.
    password = second.password_files["admin"].read_text().strip()
    for name, value in (("masteruser", "admin"), ("masterauth", password)):
        await command(first.connect("admin"), "CONFIG", "SET", name, value)
    async with LossyProxy(first.settings.port, lambda _: Fate.PASS) as name_of_the_store:
        port = name_of_the_store.port
        endpoints = world.job.endpoints.model_copy(update={"store": f"redis://127.0.0.1:{port}"})
        world.job = world.job.model_copy(update={"endpoints": endpoints})
        scheduler = await world.start()
        replica = ScriptedReplica(
            await world.client("rollout"),
            SampleStream(first.connect("rollout", port=port), UID),
            name="rollout-0",
            slots=8,
            script=slow,
            wait_ms=200,
        )
        trainer = ScriptedTrainer(
            await world.client("trainer"),
            SampleStream(first.connect("trainer", port=port), UID),
            world.job.layout.checkpoints_dir,
            wait_ms=200,
        )
        work = [world.run(replica.run()), world.run(trainer.run())]
        await eventually(lambda: len(trainer.trained) >= 3, 30.0, "three steps")
        await fail_over(first, second)

        async def refused() -> bool:
            errors = (await info(first.connect("admin"), "errorstats")).get("errorstat_READONLY", {"count": 0})
            return bool(errors["count"] >= 3)

        await eventually(refused, 10.0, "writers that the demoted store refuses")
        assert not scheduler.task.done()
        begun, at_failover = time.monotonic(), len(trainer.trained)
        name_of_the_store.target_port = second.settings.port
        written = await entries_added(second)

        async def writes() -> bool:
            return await entries_added(second) > written and len(trainer.trained) > at_failover

        await eventually(writes, RESUME_S, "writes to the new primary")
        assert time.monotonic() - begun < RESUME_S
        assert await world.finish(scheduler, *work) == 0
    check_all_trained_once(world)
    assert trainer.rewinds == 0
    assert (await info(second.connect("admin"), "replication"))["role"] == "master"


async def test_x6_a_reader_behind_a_replica_asks_the_new_primary_before_it_calls_samples_lost(
    make_world: Any, second: EmbeddedStore
) -> None:
    """A trainer only reads, so that nothing ever tells it READONLY; the replica may never get the new entries."""
    world = await make_world()
    first: EmbeddedStore = world.store
    async with LossyProxy(first.settings.port, lambda _: Fate.PASS) as name_of_the_store:
        reader = SampleStream(first.connect("trainer", port=name_of_the_store.port), UID)
        assert await reader.inspect([]) == []
        old = await added(SampleStream(first.connect("rollout"), UID))
        assert len(await reader.read([old])) == 1
        await follow(second.connect("admin"), first)
        await command(second.connect("admin"), "REPLICAOF", "NO", "ONE")
        name_of_the_store.target_port = second.settings.port
        new = await added(SampleStream(second.connect("rollout"), UID))
        found = await reader.read([old, new])
    assert [entry.ref for entry in found] == [old, new]


async def added(stream: SampleStream) -> Any:
    sample = SampleId(0, 0, 0, 0)
    return await stream.add(sample=sample, lease_id="l", kind=EntryKind.SAMPLE, payload=b"payload")


async def entries_added(store: EmbeddedStore) -> int:
    """How many entries its sample stream ever had."""
    reply = await command(store.connect("scheduler"), "XINFO", "STREAM", f"drumroll:{{{UID}}}:samples")
    values = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return int(values[b"entries-added" if b"entries-added" in values else "entries-added"])


def check_all_trained_once(world: Any) -> None:
    records: list[r.Record] = world.records()
    decided = [record for record in records if isinstance(record, r.Decided)]
    assert [record.step for record in decided] == list(range(STEPS))
    tickets = [member.ticket for record in decided for member in record.tickets]
    assert len(tickets) == len(set(tickets)) == 2 * STEPS
    assert not [record for record in records if isinstance(record, r.Rewound)]
