"""The sample stream as a replica uses it: what cannot be written or read now is tried again until it can.

Memory stays bounded because a replica's samples are: whoever waits here holds his slot. A call whose reply was lost is
sent again; the second entry is an orphan that the scheduler sweeps.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from drumroll.entries import EntryRef
from drumroll.errors import CorruptError, SampleLost, StoreUnavailable
from drumroll.samples import EntryKind, Limits, SampleId, SamplePayload, encode
from drumroll_rollout.collaborators import SampleStore
from drumroll_rollout.counters import Counters
from drumroll_rollout.held import Assignment

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 2.0
_LOG_EVERY = 100

T = TypeVar("T")


class PatientStore:
    """See the module."""

    def __init__(self, store: SampleStore, *, limits: Limits, counters: Counters) -> None:
        self._store = store
        self._limits = limits
        self._counters = counters

    async def add(self, assignment: Assignment, kind: EntryKind, payload: SamplePayload) -> EntryRef:
        """Write an entry, however long it takes."""
        sample = SampleId(*assignment.ticket, assignment.index, assignment.attempt)
        data = encode(payload)
        return await self._until_done(
            lambda: self._store.add(sample=sample, lease_id=assignment.lease_id, kind=kind, payload=data)
        )

    async def earlier(self, assignment: Assignment) -> SamplePayload | None:
        """The part that was made before; None where there is none, or it is gone: then the sample begins anew."""
        if assignment.partial is None:
            return None
        ref = EntryRef.from_proto(assignment.partial)
        try:
            (entry,) = await self._until_done(lambda: self._store.read([ref], kind=EntryKind.PARTIAL))
            return entry.decode(self._limits)
        except (SampleLost, CorruptError) as error:
            logger.warning("%s: its earlier part is lost, beginning anew: %s", assignment, error)
            return None

    async def _until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                if self._counters.store_retries_total % _LOG_EVERY == 0:
                    logger.warning("the store does not answer, samples are kept: %s", error)
                self._counters.store_retries_total += 1
            await asyncio.sleep(delay_s)
            delay_s = min(_LONGEST_RETRY_S, 2.0 * delay_s)
