"""Writes records to the ledger: all that become true while one append is under way share the next one.

The policy applies a record at once, its effects are told to nobody before `durable()` returns. A process that dies, or
is fenced, in between has told nobody anything, so that its successor's story is the only one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from drumroll_planner import records as r
from drumroll_planner.codec import to_proto
from drumroll_proto.v1 import journal_pb2

from drumroll.clock import Clock
from drumroll.errors import DrumrollError, Fenced, StoreLost, StoreUnavailable, TemporaryError

logger = logging.getLogger(__name__)

_SYNCED = (r.Decided, r.Covered, r.JobOpened, r.JobEnded, r.Rewound)
_RETRY_S = 0.2
_LOG_EVERY_S = 10.0
_TOLD_S = 5.0
"""A failure of the store is told for so long after it is over: whoever asks seldom hears of it, too."""


class LedgerWriter(Protocol):
    """What the journal needs of `drumroll.ledger.Ledger`."""

    @property
    def incarnation(self) -> int: ...

    async def append(self, data: bytes, *, sync: bool) -> int: ...

    async def write_snapshot(self, data: bytes, upto_seq: int) -> None: ...

    async def check(self) -> None: ...


@dataclass(slots=True)
class Batch:
    """Records of one append."""

    records: list[journal_pb2.JournalRecord] = field(default_factory=list)
    sync: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def encode(self) -> bytes:
        return journal_pb2.JournalEntry(records=self.records).SerializeToString()


class Journal:
    """The tail of the ledger in memory, and the one task that appends to it.

    Raises, from `run` and from then on from `durable`:
        Fenced: a successor has opened the ledger.
        StoreUnavailable: the store did not answer for `give_up_s`.
    """

    def __init__(
        self,
        ledger: LedgerWriter,
        *,
        tail: Sequence[tuple[int, bytes]],
        last_seq: int,
        clock: Clock,
        give_up_s: float = 600.0,
    ) -> None:
        self.ledger = ledger
        self.last_seq = last_seq
        """Number of the last entry that is in the ledger."""
        self.tail: list[tuple[int, bytes]] = list(tail)
        """Entries that no archived segment holds yet."""
        self.num_tail_records = 0
        self._clock = clock
        self._give_up_s = give_up_s
        self._queue: list[Batch] = []
        self._cut = True
        self._writing: Batch | None = None
        self._newest: Batch | None = None
        self._check_wanted = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._failure: DrumrollError | None = None
        self._logged_at = -_LOG_EVERY_S
        self._failing_since: float | None = None
        self._failed_at = 0.0

    @property
    def store_failing_s(self) -> float | None:
        """Since when the store has not taken an entry, in seconds; None: it takes them, and has for a while."""
        now = self._clock.monotonic()
        if self._failing_since is not None and self._writing is None and now - self._failed_at >= _TOLD_S:
            self._failing_since = None
        return now - self._failing_since if self._failing_since is not None else None

    @property
    def fenced(self) -> bool:
        """A successor has opened the ledger: this process is about to end."""
        return isinstance(self._failure, Fenced)

    def poke(self) -> None:
        """Let the writer look for something to do."""
        self._wake.set()

    def check(self) -> None:
        """Let the writer ask the store soon whether this is still the newest incarnation, and all still there."""
        self._check_wanted = True
        self._wake.set()

    def add(self, records: Sequence[r.Record]) -> None:
        """Queue records that the policy has applied."""
        if not records:
            return
        if self._cut:
            self._newest = Batch()
            self._queue.append(self._newest)
            self._cut = False
        batch = self._queue[-1]
        now, incarnation = self._clock.wall(), self.ledger.incarnation
        batch.records.extend(to_proto(record, time=now, incarnation=incarnation) for record in records)
        batch.sync = batch.sync or any(isinstance(record, _SYNCED) for record in records)
        self.num_tail_records += len(records)
        self._wake.set()

    def cut(self) -> int:
        """Close the open batch; the number that the last entry queued so far has or will have."""
        self._cut = True
        return self.last_seq + len(self._queue) + (self._writing is not None)

    async def durable(self) -> None:
        """Wait until all that was added so far is in the ledger."""
        if self._newest is not None:
            await self._newest.done.wait()
        if self._failure is not None:
            raise self._failure

    async def changed(self, timeout_s: float) -> None:
        """Wait until something was appended, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def run(self, settle: Callable[[], None], store_lost: Callable[[], Awaitable[None]]) -> None:
        """Append for ever. `settle` may add records before each append; `store_lost` makes a new ledger."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                settle()
                try:
                    await self._work()
                except StoreLost as error:
                    logger.error("the store lost the ledger: %s", error)
                    await store_lost()
                    self._tell()
        except BaseException as error:
            self._fail(error if isinstance(error, DrumrollError) else TemporaryError("this scheduler is stopping"))
            raise

    def absorb(self) -> tuple[list[tuple[int, bytes]], list[Batch]]:
        """Take all that is not in the ledger as if it were: (all entries that no segment holds, their batches).

        The caller makes a snapshot of this very moment, gets it and the entries to safety, and calls `replaced`.
        """
        batches = ([self._writing] if self._writing is not None else []) + self._queue
        self._queue, self._writing, self._cut = [], None, True
        for batch in batches:
            self.last_seq += 1
            self.tail.append((self.last_seq, batch.encode()))
        return list(self.tail), batches

    def replaced(self, ledger: LedgerWriter, batches: Sequence[Batch]) -> None:
        """A new ledger begins behind what `absorb` gave."""
        self.ledger = ledger
        for batch in batches:
            batch.done.set()

    def archived(self, upto_seq: int) -> None:
        """Forget the entries that an archived segment holds."""
        self.tail = [(seq, data) for seq, data in self.tail if seq > upto_seq]
        self.num_tail_records = 0

    async def _work(self) -> None:
        if self._queue:
            await self._write_first()
            self._wake.set()
        elif self._check_wanted:
            self._check_wanted = False
            with suppress(StoreUnavailable):
                await self.ledger.check()

    async def _write_first(self) -> None:
        batch = self._writing = self._queue.pop(0)
        self._cut = self._cut or not self._queue
        data = batch.encode()
        self.last_seq = await self._append(data, sync=batch.sync)
        self.tail.append((self.last_seq, data))
        self._writing = None
        batch.done.set()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _append(self, data: bytes, *, sync: bool) -> int:
        give_up_at = self._clock.monotonic() + self._give_up_s
        while True:
            try:
                return await self.ledger.append(data, sync=sync)
            except StoreUnavailable as error:
                now = self._clock.monotonic()
                self._failing_since = now if self.store_failing_s is None else self._failing_since
                self._failed_at = now
                if now >= give_up_at:
                    raise
                if now - self._logged_at >= _LOG_EVERY_S:
                    self._logged_at = now
                    logger.warning("the store does not answer (%s); all calls wait for it", error)
            await asyncio.sleep(_RETRY_S)

    def _fail(self, error: DrumrollError) -> None:
        self._failure = error
        for batch in self._queue if self._writing is None else [self._writing, *self._queue]:
            batch.done.set()
        self._tell()
