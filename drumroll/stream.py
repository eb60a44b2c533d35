"""The sample stream: an append-only bag of entries that are read by id alone.

An entry is a header `h` and a payload `p`. Adding is at least once: a lost reply leaves an orphan, which the sweep
counts. Only the scheduler deletes. What a reader gets has the sum that it asked for, or is refused.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from drumroll.entries import Entry, EntryRef, entry_key, is_entry_id, make_header, parse_entry
from drumroll.errors import CorruptError, SampleLost
from drumroll.samples import EntryKind, SampleId
from drumroll.store import Redis, command, commands, renew

__all__ = ["Entry", "EntryRef", "Fault", "SampleStream", "StreamUsage", "entry_key"]

_BATCH_ENTRIES = 64
_BATCH_BYTES = 4 << 20
_EXACT_USAGE_ENTRIES = 20_000
_MOST_CALLS = 32
"""In flight at once: each takes a connection, and a replica's samples may end all together."""


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """What the stream takes."""

    bytes: int
    """Memory of the server."""
    entries: int


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that could not be had."""

    ref: EntryRef
    gone: bool
    """False: it is there, but damaged or foreign."""
    reason: str


class SampleStream:
    """The stream of one job. Safe for any number of tasks of one event loop.

    All methods raise as `drumroll.store.store_errors`; `drumroll.store.retrying` may wrap each of them.
    """

    def __init__(self, redis: Redis, uid: str, *, max_payload_bytes: int | None = None) -> None:
        """`max_payload_bytes`: larger payloads are refused on reading (`Limits.max_payload_bytes` of the job)."""
        self._redis = redis
        self._uid = uid
        self._max_bytes = max_payload_bytes
        self._calls = asyncio.Semaphore(_MOST_CALLS)
        self.key = f"drumroll:{{{uid}}}:samples"

    async def add(self, *, sample: SampleId, lease_id: str, kind: EntryKind, payload: bytes) -> EntryRef:
        """Add an entry. Where the reply is lost it may exist all the same: adding again makes an orphan of it."""
        digest = hashlib.sha256(payload).digest()
        header = make_header(
            self._uid,
            sample=sample,
            lease_id=lease_id,
            kind=kind,
            payload_sha256=digest,
            payload_bytes=len(payload),
        )
        async with self._calls:
            reply = await command(self._redis, "XADD", self.key, "*", "h", header, "p", payload)
        return EntryRef(reply.decode(), digest, len(payload))

    async def read(
        self, refs: Sequence[EntryRef], *, kind: EntryKind = EntryKind.SAMPLE, concurrency: int = 4
    ) -> list[Entry]:
        """The entries, in the order of `refs`, checked against uid, kind and sum.

        Raises:
            SampleLost: some are gone; `entry_ids` names them and the damaged ones.
            CorruptError: none is gone, but some are damaged.
        """
        found = await self.inspect(refs, kind=kind, concurrency=concurrency)
        faults = [item for item in found if isinstance(item, Fault)]
        if not faults:
            return [item for item in found if isinstance(item, Entry)]
        text = "; ".join(f"entry {fault.ref.entry_id}: {fault.reason}" for fault in faults[:3])
        message = f"{len(faults)} of {len(refs)} entries cannot be had: {text}"
        if any(fault.gone for fault in faults):
            raise SampleLost(message, tuple(fault.ref.entry_id for fault in faults))
        raise CorruptError(message)

    async def inspect(
        self, refs: Sequence[EntryRef], *, kind: EntryKind = EntryKind.SAMPLE, concurrency: int = 4
    ) -> list[Entry | Fault]:
        """As `read`, but what cannot be had comes back as a Fault in its place."""
        found = await self._read_all(refs, kind, concurrency)
        missing = [index for index, item in enumerate(found) if isinstance(item, Fault) and item.gone]
        if missing:
            # A connection from before a failover leads to a replica, which may be behind: only a new one is to be
            # believed.
            await renew(self._redis)
            again = await self._read_all([refs[index] for index in missing], kind, concurrency)
            for index, item in zip(missing, again, strict=True):
                found[index] = item
        return found

    async def delete(self, entry_ids: Sequence[str]) -> int:
        """Scheduler only. Delete entries; how many of them were there. Deleting again does nothing."""
        deleted = 0
        for start in range(0, len(entry_ids), 1000):
            deleted += await command(self._redis, "XDEL", self.key, *entry_ids[start : start + 1000])
        return deleted

    async def trim(self, min_id: str, *, keep_s: float = 0.0) -> int:
        """Scheduler only. Delete all entries before `min_id`; how many there were: the orphans.

        Entries that the server took in the last `keep_s` seconds stay: their reports may still be on the way.
        """
        oldest = entry_key(min_id)
        if keep_s > 0:
            seconds, _ = await command(self._redis, "TIME")
            oldest = min(oldest, (int((seconds - keep_s) * 1000), 0))
        horizon = f"{max(oldest[0], 0)}-{oldest[1]}"
        return int(await command(self._redis, "XTRIM", self.key, "MINID", "=", horizon))

    async def usage(self) -> StreamUsage:
        """Scheduler only. What the stream takes; cheap enough for once a second."""
        entries = int(await command(self._redis, "XLEN", self.key))
        # 0 looks at every node, which long streams cannot afford; theirs is extrapolated from a part.
        samples = 0 if entries <= _EXACT_USAGE_ENTRIES else _EXACT_USAGE_ENTRIES
        memory = await command(self._redis, "MEMORY", "USAGE", self.key, "SAMPLES", samples)
        return StreamUsage(int(memory or 0), entries)

    async def _read_all(self, refs: Sequence[EntryRef], kind: EntryKind, concurrency: int) -> list[Entry | Fault]:
        gate = asyncio.Semaphore(concurrency)
        found = await asyncio.gather(*(self._read_batch(batch, kind, gate) for batch in _batches(refs)))
        return [item for batch in found for item in batch]

    async def _read_batch(
        self, batch: Sequence[EntryRef], kind: EntryKind, gate: asyncio.Semaphore
    ) -> list[Entry | Fault]:
        # A reference may come from anybody: "-" as an id would be a range over everything.
        asked = [ref.entry_id for ref in batch if is_entry_id(ref.entry_id)]
        async with gate, self._calls:
            replies = await commands(self._redis, [("XRANGE", self.key, item, item) for item in asked])
        found = dict(zip(asked, replies, strict=True))
        return [self._judge(ref, found.get(ref.entry_id), kind) for ref in batch]

    def _judge(self, ref: EntryRef, reply: list[Any] | None, kind: EntryKind) -> Entry | Fault:
        if reply is None:
            return Fault(ref, gone=False, reason="that is not an entry id")
        if not reply:
            return Fault(ref, gone=True, reason="it is gone")
        try:
            entry = parse_entry(self._uid, ref, reply[0][1], max_bytes=self._max_bytes)
        except CorruptError as error:
            return Fault(ref, gone=False, reason=str(error))
        if entry.kind is not kind:
            return Fault(ref, gone=False, reason=f"it is a {entry.kind.value}, a {kind.value} is wanted")
        return entry


def _batches(refs: Sequence[EntryRef]) -> Iterator[list[EntryRef]]:
    """Cut into pipelines of at most so many entries and (where sizes are known) bytes."""
    batch: list[EntryRef] = []
    size = 0
    for ref in refs:
        if batch and (len(batch) == _BATCH_ENTRIES or size + (ref.num_bytes or 0) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(ref)
        size += ref.num_bytes or 0
    if batch:
        yield batch
