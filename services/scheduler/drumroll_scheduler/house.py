"""What the scheduler does on its own between calls: lets time pass, sweeps, archives, looks after the store."""

import asyncio
import logging
import time
from contextlib import suppress

from drumroll.errors import StoreUnavailable
from drumroll_scheduler.archive import Archive
from drumroll_scheduler.core import Core
from drumroll_scheduler.planning import describe_fleet
from drumroll_scheduler.sweeper import Sweeper
from drumroll_scheduler.timeline import queue_row

logger = logging.getLogger(__name__)

_PAUSE_OF_WORK = 200.0
"""Pause between two rounds, in times of what the round before took of the processor."""
_LONGEST_PAUSE_S = 10.0


async def pass_time(core: Core, *, every_s: float) -> None:
    """Settle every so often, whether anybody calls or not."""
    while True:
        core.journal.poke()
        await asyncio.sleep(every_s)


async def plan_passes(core: Core) -> None:
    """Make plans of coming passes in the background for ever."""

    def describe() -> dict[str, object]:
        speeds = core.policy.speeds
        return describe_fleet(core.policy.state, speeds, core.passes.costs)

    await core.passes.run(describe, core.journal.poke)


async def keep_house(core: Core, archive: Archive, sweeper: Sweeper, *, every_s: float) -> None:
    """Housekeeping for ever; at once after a checkpoint.

    It works for a small share of the time only: what it does grows with the fleet, and calls wait for it.
    """
    while True:
        core.sweep_now.clear()
        began = time.thread_time()
        await _clean(core, archive, sweeper)
        pause_s = max(every_s, min(_LONGEST_PAUSE_S, _PAUSE_OF_WORK * (time.thread_time() - began)))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await core.sweep_now.wait()


async def _clean(core: Core, archive: Archive, sweeper: Sweeper) -> None:
    # Found here within seconds: a store that lost everything while nothing is appended, or a successor.
    core.journal.check()
    await sweeper.sweep()
    core.timeline.add(queue_row(core.gauges(), core.clock.wall()))
    core.flush()
    if archive.due:
        try:
            await archive.close_segment()
        except (OSError, StoreUnavailable) as error:
            # Nothing was trimmed: the store holds the entries until the volume takes them.
            logger.warning("the journal cannot be archived now: %s", error)
