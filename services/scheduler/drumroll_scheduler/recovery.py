"""When the store comes back empty. Two ways, by what is left:

- this scheduler lives: its memory holds the whole story. The unarchived tail goes to the volume, a new ledger begins
  with a snapshot of this moment;
- a scheduler starts: the newest complete checkpoint's snapshot and the archived segments behind it. What was journaled
  after the last segment is lost; the trainer brings the decisions among it (`send_known`).

Either way the samples in the stream are gone: those that no decision names are planned again, a decision whose samples
the trainer misses rewinds the job.
"""

import asyncio
import logging
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.losses import HeldEntry, held_entries, losses

from drumroll.entries import EntryRef
from drumroll.errors import CorruptError
from drumroll.ledger import Ledger
from drumroll.samples import EntryKind
from drumroll.segments import read_segments, write_segment
from drumroll.store import Redis, retrying
from drumroll.stream import Fault, SampleStream
from drumroll_scheduler.archive import snapshot_of, write_incarnation
from drumroll_scheduler.core import Core
from drumroll_scheduler.snapshot import LedgerSnapshot, compress, decode

logger = logging.getLogger(__name__)

STREAM_LOST = "StreamLost"
_STORE_DEADLINE_S = 600.0


def newest_checkpoint(checkpoints_dir: Path, job_uid: str) -> LedgerSnapshot | None:
    """The ledger snapshot of the newest complete checkpoint that has a sound one."""
    for folder in sorted(checkpoints_dir.glob("step_*"), reverse=True):
        if not (folder / "complete.json").exists():
            continue
        try:
            return decode((folder / "ledger.snapshot").read_bytes(), job_uid=job_uid)
        except (OSError, CorruptError) as error:
            logger.warning("the ledger snapshot of %s cannot be used: %s", folder.name, error)
    return None


def archived_story(
    *, checkpoints_dir: Path, journal_dir: Path, job_uid: str
) -> tuple[LedgerSnapshot | None, list[tuple[int, bytes]]]:
    """What the volume knows: a checkpoint's snapshot, if there is one, and the archived entries behind it.

    Raises:
        CorruptError: archived entries are damaged or missing.
    """
    snapshot = newest_checkpoint(checkpoints_dir, job_uid)
    first_seq = snapshot.upto_seq + 1 if snapshot is not None else 1
    return snapshot, read_segments(journal_dir, first_seq=first_seq) if journal_dir.is_dir() else []


class StoreRecovery:
    """Makes a new ledger while the job runs."""

    def __init__(self, core: Core, redis: Redis, stream: SampleStream, *, job_uid: str, journal_dir: Path) -> None:
        self._core = core
        self._redis = redis
        self._stream = stream
        self._job_uid = job_uid
        self._journal_dir = journal_dir

    async def rebuild(self) -> None:
        """Put the ledger into the empty store, and plan again what the stream lost. Calls wait meanwhile."""
        core, journal = self._core, self._core.journal
        # No await between these lines: the snapshot must hold exactly what was absorbed.
        entries, batches = journal.absorb()
        upto_seq, floor = journal.last_seq, core.incarnation
        text = snapshot_of(core, self._job_uid, upto_seq).to_json()
        if entries:
            await asyncio.to_thread(write_segment, self._journal_dir, entries)
            journal.archived(upto_seq)
        data = await asyncio.to_thread(compress, text)
        ledger = await retrying(
            lambda: Ledger.rebuild(self._redis, self._job_uid, snapshot=data, upto_seq=upto_seq, floor=floor),
            deadline_s=_STORE_DEADLINE_S,
        )
        write_incarnation(self._journal_dir, ledger.incarnation)
        journal.replaced(ledger, batches)
        await take_losses(core, self._stream, f"the store came back empty; rebuilt from memory at entry {upto_seq}")


async def take_losses(core: Core, stream: SampleStream, message: str) -> None:
    """Give up accepted samples and partials whose entries are gone, and say so."""
    held = held_entries(core.policy.state)
    missing = await retrying(lambda: _missing(stream, held), deadline_s=_STORE_DEADLINE_S)
    # The policy went on while the store was asked: only what is still held is given up.
    records = losses(core.policy.state, missing)
    note = r.Noted(STREAM_LOST, f"{message}; {len(records)} samples are planned again")
    logger.error("%s: %s", STREAM_LOST, note.message)
    core.take((note, *records))


async def _missing(stream: SampleStream, held: tuple[HeldEntry, ...]) -> frozenset[str]:
    found = [
        *await stream.inspect([_ref(one) for one in held if not one.partial]),
        *await stream.inspect([_ref(one) for one in held if one.partial], kind=EntryKind.PARTIAL),
    ]
    return frozenset(item.ref.entry_id for item in found if isinstance(item, Fault))


def _ref(held: HeldEntry) -> EntryRef:
    return EntryRef(held.entry_id, held.sha256)
