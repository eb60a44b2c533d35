"""Waiting for the prepared data set: on a cluster the scheduler's init container makes it while others start.

A model that an init container brings to the same volume is there by then as well.
"""

import asyncio
import logging
from pathlib import Path

from drumroll.data.prepared import INFO_FILE

logger = logging.getLogger(__name__)

PATIENCE_S = 6 * 3600.0
"""Then whoever reads the data set says that it is missing."""
_LOOK_AGAIN_S = 0.5
_LOG_EVERY_S = 60.0


async def until_prepared(
    data_dir: Path, *, unless: asyncio.Event | None = None, patience_s: float = PATIENCE_S
) -> bool:
    """Wait until the data set is there; False if `unless` is set before that."""
    loop = asyncio.get_running_loop()
    started = logged = loop.time()
    while not (data_dir / INFO_FILE).exists() and loop.time() - started < patience_s:
        if unless is not None and unless.is_set():
            return False
        if loop.time() - logged >= _LOG_EVERY_S:
            logged = loop.time()
            logger.info("waiting for the data set to be prepared in %s", data_dir)
        await asyncio.sleep(_LOOK_AGAIN_S)
    return True
