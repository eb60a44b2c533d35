"""Calls that carry many items at once: whatever has piled up while the call before was under way goes into the next."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from drumroll.errors import SchedulerUnavailable

logger = logging.getLogger(__name__)

_LARGEST = 128

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class Batches(Generic[ItemT, AnswerT]):
    """One call at a time; each item waits for its own answer. While the scheduler is away, items are kept."""

    def __init__(self, send: Callable[[Sequence[ItemT]], Awaitable[Sequence[AnswerT]]]) -> None:
        """`send` answers in the order of its items."""
        self._send = send
        self._queue: asyncio.Queue[tuple[ItemT, asyncio.Future[AnswerT]]] = asyncio.Queue()

    async def submit(self, item: ItemT) -> AnswerT:
        """Send an item with the next call, and wait for its answer."""
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    async def run(self) -> None:
        """Send for ever."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _LARGEST and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            # An item whose sender was cancelled meanwhile is of no interest any more.
            batch = [entry for entry in batch if not entry[1].done()]
            if batch:
                await self._send_all(batch)

    async def _send_all(self, batch: list[tuple[ItemT, asyncio.Future[AnswerT]]]) -> None:
        while True:
            try:
                answers = await self._send([item for item, _ in batch])
            except SchedulerUnavailable as error:
                logger.warning("%s; %d items are kept and sent again", error, len(batch))
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
            return
