"""The ledger: a fenced, gapless journal of byte strings, with a snapshot of what was trimmed away.

    snapshot (all up to seq S) | entries S+1, S+2, ... N

Only the newest incarnation appends. Each write is one server-side script that compares the incarnation first, so a
replaced writer changes nothing and learns of it. A write may be repeated after a lost reply: the script knows the last
entry by its digest. The scripts may go over the server's memory limit, so that samples never keep the ledger from
being written.
"""

import asyncio
import hashlib
import logging
from typing import Any

from drumroll import ledger_scripts as scripts
from drumroll.errors import CorruptError, Fenced, ProtocolError, StoreLost, StoreUnavailable, UserError
from drumroll.segments import read_segments, write_segment
from drumroll.store import Redis, address, command, commands

__all__ = ["Ledger", "read_segments", "write_segment"]

logger = logging.getLogger(__name__)

_READ_ENTRIES = 500
_SYNC_MS = 5000


class Ledger:
    """One writer's hold on the ledger of a job. Make it with `open` or `rebuild`; appends are serialised.

    All methods raise as `drumroll.store.store_errors`, and

        Fenced: a newer incarnation has taken over. Exit.
        StoreLost: the store answers, but what was written is gone.
    """

    def __init__(self, redis: Redis, uid: str, incarnation: int) -> None:
        self._redis = redis
        self._keys = [f"drumroll:{{{uid}}}:{name}" for name in ("incarnation", "journal", "snapshot")]
        self._lock = asyncio.Lock()
        self._unsure: bytes | None = None
        self.sync_ms = _SYNC_MS
        """How long a sync may take before it counts as failed."""
        self.incarnation = incarnation
        self.last_seq = 0
        """Sequence number of the newest entry; 0 before the first."""
        self.snapshot: bytes | None = None
        """As it was when the ledger was opened."""
        self.snapshot_seq = 0
        """The snapshot holds all entries up to this one."""
        self.entries: list[tuple[int, bytes]] = []
        """The tail behind the snapshot, as it was when the ledger was opened."""

    @classmethod
    async def open(cls, redis: Redis, uid: str, *, floor: int = 0) -> "Ledger":
        """Take over: raise the incarnation above the stored one and `floor`, then read snapshot and tail.

        A store that never saw the job gives an empty ledger; who knows that there was one calls `rebuild`.

        Raises:
            CorruptError: an entry's digest does not fit.
        """
        ledger = cls(redis, uid, 0)
        reply = await ledger._take_over(scripts.OPEN, str(floor))
        ledger.incarnation, ledger.last_seq = int(reply[0]), int(reply[1])
        ledger.snapshot_seq, ledger.snapshot = int(reply[2]), reply[3] or None
        ledger.entries = await ledger.read(ledger.snapshot_seq + 1)
        return ledger

    @classmethod
    async def rebuild(cls, redis: Redis, uid: str, *, snapshot: bytes, upto_seq: int, floor: int) -> "Ledger":
        """Begin anew from a checkpoint's snapshot, in a store that lost the ledger or a part of it.

        Whatever the ledger holds is deleted; `floor` is the newest incarnation known from elsewhere.
        """
        ledger = cls(redis, uid, 0)
        reply = await ledger._take_over(scripts.REBUILD, str(floor), str(upto_seq), snapshot)
        ledger.incarnation, ledger.last_seq = int(reply[0]), upto_seq
        ledger.snapshot, ledger.snapshot_seq = snapshot, upto_seq
        return ledger

    async def append(self, data: bytes, *, sync: bool = False) -> int:
        """Append one entry; its sequence number.

        With `sync` it is in the append-only file before this returns. When StoreUnavailable is raised (or the task is
        cancelled) the entry may exist or not: repeat the call with the same bytes, nothing else is taken before.

        Raises:
            ProtocolError: the outcome of another append is open.
            UserError: `sync`, and the store has no append-only file.
        """
        async with self._lock:
            if self._unsure is not None and self._unsure != data:
                raise ProtocolError(f"the outcome of entry {self.last_seq + 1} is open: repeat that append first")
            seq = self.last_seq + 1
            self._unsure = data
            await self._run(scripts.APPEND, str(self.incarnation), str(seq), data, _digest(data), sync=sync)
            self._unsure = None
            self.last_seq = seq
            return seq

    async def write_snapshot(self, data: bytes, upto_seq: int) -> None:
        """Replace the snapshot by one that holds all entries up to `upto_seq`, and trim those; in one step, synced.

        Raises:
            ProtocolError: `upto_seq` is not between the present snapshot's and the last entry.
        """
        async with self._lock:
            if not self.snapshot_seq <= upto_seq <= self.last_seq:
                raise ProtocolError(f"a snapshot up to {upto_seq}, between {self.snapshot_seq} and {self.last_seq}")
            arguments = (str(self.incarnation), str(self.last_seq), str(upto_seq), data)
            # While an append's outcome is open the journal may be one ahead.
            await self._run(scripts.SNAPSHOT, *arguments, sync=True)
            self.snapshot_seq = upto_seq

    async def check(self) -> None:
        """Whether this writer still holds the ledger and all is there; for a heartbeat."""
        async with self._lock:
            await self._run(scripts.CHECK, str(self.incarnation), str(self.last_seq))

    async def read(self, first_seq: int, last_seq: int | None = None) -> list[tuple[int, bytes]]:
        """The entries from `first_seq` on (and up to `last_seq`), in order, for an archive.

        Raises:
            StoreLost: some are missing (trimmed ones count as missing).
            CorruptError: an entry's digest does not fit.
        """
        try:
            entries = await self._read(first_seq, self.last_seq if last_seq is None else last_seq)
        except StoreLost:
            # Entries may be missing because a successor has trimmed them: then Fenced is the truth.
            await self.check()
            raise
        await self.check()
        return entries

    async def _read(self, first_seq: int, end: int) -> list[tuple[int, bytes]]:
        entries: list[tuple[int, bytes]] = []
        while (following := first_seq + len(entries)) <= end:
            bounds = (f"{following}-0", f"{end}-0", "COUNT", _READ_ENTRIES)
            rows = await command(self._redis, "XRANGE", self._keys[1], *bounds)
            if not rows:
                raise StoreLost(f"journal entries {following}..{end} are missing at {address(self._redis)}")
            for entry_id, fields in rows:
                entries.append(_check_entry(first_seq + len(entries), entry_id, fields))
        return entries

    async def _take_over(self, script: str, *arguments: str | bytes) -> list[Any]:
        try:
            return await self._run(script, *arguments, sync=True)
        except UserError as error:
            # Done, though not synced: whether such a store will do is for `drumroll.store.require_sound` to say.
            logger.warning("%s", error)
            return await self._run(script, *arguments)

    async def _run(self, script: str, *arguments: str | bytes, sync: bool = False) -> list[Any]:
        call = ("EVAL", script, len(self._keys), *self._keys, *arguments)
        if not sync:
            return self._verdict(await command(self._redis, *call))
        try:
            replies = await commands(self._redis, [call, ("WAITAOF", 1, 0, self.sync_ms)])
        except ProtocolError as error:
            if "appendonly is disabled" in str(error):
                raise UserError(f"the store at {address(self._redis)} has no append-only file: {error}") from error
            raise
        verdict = self._verdict(replies[0])
        if replies[1][0] < 1:
            raise StoreUnavailable(f"the store at {address(self._redis)} did not sync within {self.sync_ms} ms")
        return verdict

    def _verdict(self, reply: list[Any]) -> list[Any]:
        outcome, rest = reply[0], reply[1:]
        where = f"the ledger at {address(self._redis)}"
        if outcome == b"ok":
            return rest
        detail = rest[0].decode()
        if outcome == b"fenced":
            raise Fenced(f"{where}: incarnation {self.incarnation} was replaced by {detail}")
        raise StoreLost(f"{where}: {detail}")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _check_entry(seq: int, entry_id: bytes, fields: dict[bytes, bytes]) -> tuple[int, bytes]:
    if entry_id != b"%d-0" % seq:
        raise StoreLost(f"journal entry {seq} is missing; the next one is {entry_id.decode()}")
    data = fields.get(b"d", b"")
    if fields.get(b"s") != _digest(data):
        raise CorruptError(f"journal entry {seq} does not have the sum that it was written with")
    return seq, data
