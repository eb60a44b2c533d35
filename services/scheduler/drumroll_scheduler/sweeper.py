"""Deletes stream entries that nothing needs: those of ended tickets and of evaluations, and what lies behind the oldest
needed one.

Coverage is journaled and synced before a sample is deleted. The policy's oldest needed id is older than every entry
whose report may still come, so what lies before it and was not deleted by name is an orphan: a repeated write, or one
whose lease was taken back.
"""

import logging

from drumroll.errors import StoreUnavailable
from drumroll.stream import SampleStream
from drumroll_scheduler.core import Core

logger = logging.getLogger(__name__)

EVERYTHING = f"{2**63}-0"


class Sweeper:
    """See the module."""

    def __init__(self, core: Core, stream: SampleStream) -> None:
        self._core = core
        self._stream = stream

    async def sweep(self) -> None:
        """Delete what may go. The store's absence is waited out by the next sweep."""
        core = self._core
        released, oldest_needed = core.policy.releasable_entries()
        entry_ids = (*released, *core.evaluation.releasable_entries(core.policy.state))
        await core.durable()
        try:
            if entry_ids:
                core.count("swept_entries", await self._stream.delete(entry_ids))
                core.policy.entries_deleted(entry_ids)
                core.evaluation.entries_deleted(entry_ids)
            if oldest_needed is not None:
                await self._trim(oldest_needed)
            usage = await self._stream.usage()
        except StoreUnavailable as error:
            logger.info("not swept: %s", error)
            return
        core.counters["store_bytes"], core.counters["store_entries"] = usage.bytes, usage.entries

    async def clear(self) -> None:
        """Delete all: the job has ended."""
        await self._core.durable()
        await self._trim(EVERYTHING)

    async def _trim(self, oldest_needed: str) -> None:
        orphans = await self._stream.trim(oldest_needed)
        if orphans:
            self._core.count("orphan_entries", orphans)
            logger.info("swept %d entries that no report names", orphans)
