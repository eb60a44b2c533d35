"""Where payloads of decided samples come from: the job's stream, then the step's archive."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from drumroll_planner import records as r

from drumroll.errors import CorruptError
from drumroll.samples import SampleId
from drumroll.store import retrying
from drumroll.stream import Entry, EntryRef, Fault, SampleStream
from drumroll_trainer.archive import read_step
from drumroll_trainer.decisions import sample_keys
from drumroll_trainer.ports import SampleSource

logger = logging.getLogger(__name__)

STORE_DEADLINE_S = 600.0


class StreamSource:
    """Reads entries by id, pipelined, from the sample stream; retries while the store is away."""

    def __init__(self, stream: SampleStream, *, deadline_s: float = STORE_DEADLINE_S) -> None:
        self._stream = stream
        self._deadline_s = deadline_s

    async def read(self, decision: r.Decided) -> list[bytes | None]:
        """See SampleSource."""
        keys = sample_keys(decision)
        refs = [EntryRef(sample.entry_id, sample.sha256) for _, sample in keys]
        found = await retrying(lambda: self._stream.inspect(refs), deadline_s=self._deadline_s)
        return [_payload(ticket, sample, item) for (ticket, sample), item in zip(keys, found, strict=True)]


class MemorySource:
    """Payloads by entry id, for tests and rehearsals without a store."""

    def __init__(self, entries: Mapping[str, bytes]) -> None:
        self.entries = dict(entries)

    async def read(self, decision: r.Decided) -> list[bytes | None]:
        """See SampleSource."""
        return [_if_intact(self.entries.get(sample.entry_id), sample) for _, sample in sample_keys(decision)]


class ArchiveSource:
    """Reads the archives of steps that were trained before."""

    def __init__(self, samples_dir: Path) -> None:
        self._samples_dir = samples_dir

    async def read(self, decision: r.Decided) -> list[bytes | None]:
        """See SampleSource."""
        missing: list[bytes | None] = [None] * len(sample_keys(decision))
        try:
            archived = read_step(self._samples_dir, decision.step)
        except CorruptError as error:
            logger.warning("%s", error)
            return missing
        if archived is None:
            return missing
        # The archive may be of another decision of this step (before a rewind): samples are told by their sums.
        payloads = {hashlib.sha256(payload).digest(): payload for payload in archived.payloads}
        return [payloads.get(sample.sha256) for _, sample in sample_keys(decision)]


class FirstOf:
    """Asks sources in turn for what is still missing."""

    def __init__(self, *sources: SampleSource) -> None:
        self._sources = sources

    async def read(self, decision: r.Decided) -> list[bytes | None]:
        """See SampleSource."""
        found: list[bytes | None] = [None] * len(sample_keys(decision))
        for source in self._sources:
            if all(payload is not None for payload in found):
                break
            more = await source.read(decision)
            found = [had if had is not None else got for had, got in zip(found, more, strict=True)]
        return found


def _payload(ticket: r.TicketId, sample: r.DecidedSample, item: Entry | Fault) -> bytes | None:
    wanted = SampleId(ticket.epoch, ticket.ordinal, sample.index, sample.attempt)
    if isinstance(item, Fault):
        logger.warning("sample %s, entry %s: %s", wanted, sample.entry_id, item.reason)
        return None
    if item.sample != wanted:
        logger.warning("entry %s is sample %s, the decision says %s", sample.entry_id, item.sample, wanted)
        return None
    return item.payload


def _if_intact(payload: bytes | None, sample: r.DecidedSample) -> bytes | None:
    if payload is None or hashlib.sha256(payload).digest() != sample.sha256:
        return None
    return payload
