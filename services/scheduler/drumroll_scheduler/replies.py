"""One answer per request id: a retry joins the call that is under way, or gets the answer that it missed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Replies(Generic[T]):
    """Answers of the last calls. Only in memory: after a restart the policy itself makes a retry harmless."""

    def __init__(self, *, keep: int = 4096) -> None:
        self._keep = keep
        self._calls: dict[str, asyncio.Task[T]] = {}

    async def once(self, request_id: str, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of the first call with this id; a caller that goes away does not stop it."""
        task = self._calls.get(request_id)
        if task is None:
            task = asyncio.ensure_future(_run(call))
            self._calls[request_id] = task
            task.add_done_callback(lambda done: self._forget_failure(request_id, done))
            self._evict()
        return await asyncio.shield(task)

    def _forget_failure(self, request_id: str, task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._calls.pop(request_id, None)

    def _evict(self) -> None:
        if len(self._calls) <= self._keep:
            return
        for request_id in [key for key, task in self._calls.items() if task.done()][: self._keep // 4]:
            del self._calls[request_id]


async def _run(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
