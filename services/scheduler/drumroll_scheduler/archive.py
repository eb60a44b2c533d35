"""Moves the journal's tail out of the store: closed segments on the volume, one snapshot in their place.

    cut -> durable -> segment written and synced -> snapshot replaces the entries in the store

so that at every moment each entry is in the store or in a segment, and the segments alone tell the whole story.
"""

import asyncio
import logging
from pathlib import Path

from drumroll.errors import StoreLost, StoreUnavailable
from drumroll.segments import replace_file, write_segment
from drumroll_scheduler.core import Core
from drumroll_scheduler.snapshot import CheckpointMark, LedgerSnapshot, compress

logger = logging.getLogger(__name__)

INCARNATION_FILE = "incarnation"
_TAIL_OF_STATE = 4
"""Records in the tail for each lease and ticket of the state, before a snapshot replaces them."""


def read_incarnation(journal_dir: Path) -> int:
    """The newest incarnation known to the volume; 0 where there was none."""
    try:
        return int((journal_dir / INCARNATION_FILE).read_text())
    except (OSError, ValueError):
        return 0


def write_incarnation(journal_dir: Path, incarnation: int) -> None:
    """Note an incarnation, so that a store that lost everything does not begin below it."""
    journal_dir.mkdir(parents=True, exist_ok=True)
    replace_file(journal_dir / INCARNATION_FILE, str(incarnation).encode())


def snapshot_of(core: Core, job_uid: str, upto_seq: int, mark: CheckpointMark | None = None) -> LedgerSnapshot:
    """The ledger's snapshot at this moment; `upto_seq` is the entry that all applied records are in."""
    return LedgerSnapshot(
        job_uid=job_uid,
        upto_seq=upto_seq,
        incarnation=core.incarnation,
        policy=core.policy.snapshot(),
        story=core.story.to_json(),
        checkpoint=mark,
    )


class Archive:
    """See the module. One at a time: segments follow each other without gaps."""

    def __init__(self, core: Core, *, job_uid: str, journal_dir: Path, every_records: int = 5000) -> None:
        self._core = core
        self._job_uid = job_uid
        self._journal_dir = journal_dir
        self._every_records = every_records
        self._lock = asyncio.Lock()

    @property
    def due(self) -> bool:
        """The tail is long, also against the snapshot that would replace it: making one takes time by the state's size,
        during which nobody is answered."""
        state = self._core.policy.state
        size = len(state.leases) + len(state.tickets)
        return self._core.journal.num_tail_records >= max(self._every_records, _TAIL_OF_STATE * size)

    async def close_segment(self, mark: CheckpointMark | None = None) -> bytes:
        """Archive all up to now; the snapshot that stands for it.

        Raises:
            OSError: the volume is full; nothing was trimmed.
            Fenced: as `Journal.durable`.
        """
        async with self._lock:
            core, journal = self._core, self._core.journal
            ledger, upto_seq = journal.ledger, journal.cut()
            text = snapshot_of(core, self._job_uid, upto_seq, mark).to_json()
            await journal.durable()
            data = await asyncio.to_thread(compress, text)
            core.flush()
            entries = [(seq, entry) for seq, entry in journal.tail if seq <= upto_seq]
            if entries:
                await asyncio.to_thread(write_segment, self._journal_dir, entries)
                await self._trim(ledger is journal.ledger, data, upto_seq)
            return data

    async def keep_for_checkpoint(self, mark: CheckpointMark) -> Path:
        """Write the snapshot that belongs into a checkpoint; its path. A snapshot of the same step is replaced."""
        data = await self.close_segment(mark)
        path = self._journal_dir / f"ledger_step_{mark.step:06d}.snapshot"
        await asyncio.to_thread(_write, path, data)
        return path

    async def forget_checkpoints(self, before_step: int) -> None:
        """Delete snapshot files that their checkpoints hold by now."""
        for path in await asyncio.to_thread(lambda: sorted(self._journal_dir.glob("ledger_step_*.snapshot"))):
            if int(path.stem.rpartition("_")[2]) < before_step:
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _trim(self, same_ledger: bool, data: bytes, upto_seq: int) -> None:
        journal = self._core.journal
        if same_ledger:
            try:
                await journal.ledger.write_snapshot(data, upto_seq)
            except (StoreUnavailable, StoreLost) as error:
                # The entries stay in the tail: the next segment holds them once more.
                logger.warning("the journal was archived up to entry %d, but not trimmed: %s", upto_seq, error)
                return
        journal.archived(upto_seq)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)
