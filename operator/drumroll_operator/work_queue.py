"""What is to be reconciled and when: each key at most once in the queue and at most once in work.

A key that is added while it is worked on comes again afterwards. One key never runs twice within `spacing_s`, however
often it is added, and no key waits behind later ones: keys are taken in the order of their due times.
"""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

from drumroll.clock import Clock, SystemClock

KeyT = TypeVar("KeyT", bound=Hashable)


class Schedule(Generic[KeyT]):
    """The rules alone: time is an argument, nothing waits."""

    def __init__(self, *, spacing_s: float = 0.0) -> None:
        self._spacing_s = spacing_s
        self._heap: list[tuple[float, int, KeyT]] = []
        self._due: dict[KeyT, float] = {}
        self._again: dict[KeyT, float] = {}
        self._working: set[KeyT] = set()
        self._taken: OrderedDict[KeyT, float] = OrderedDict()
        self._serial = 0

    def __len__(self) -> int:
        """Keys that wait, due or not."""
        return len(self._due) + len(self._again)

    def depth(self, now: float) -> int:
        """Keys that are due and wait for a worker."""
        return sum(due <= now for due in self._due.values())

    @property
    def working(self) -> frozenset[KeyT]:
        """Keys in work."""
        return frozenset(self._working)

    def add(self, key: KeyT, due: float) -> None:
        """Want a key worked on at `due` or sooner: the earliest wish counts."""
        waiting = self._again if key in self._working else self._due
        due = max(due, self._taken.get(key, -inf) + self._spacing_s)
        if due >= waiting.get(key, inf):
            return
        waiting[key] = due
        if waiting is self._due:
            self._push(key, due)

    def take(self, now: float) -> tuple[KeyT, float] | None:
        """A key to work on with its due time; None: nothing is due."""
        self._tidy()
        while self._taken and next(iter(self._taken.values())) + self._spacing_s <= now:
            self._taken.popitem(last=False)
        if not self._heap or self._heap[0][0] > now:
            return None
        due, _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._working.add(key)
        self._taken[key] = now
        self._taken.move_to_end(key)
        return key, due

    def done(self, key: KeyT) -> None:
        """The work on a key has ended, well or badly."""
        self._working.discard(key)
        due = self._again.pop(key, None)
        if due is not None:
            self.add(key, due)

    def next_due(self) -> float | None:
        """When the next key is due; None: none waits."""
        self._tidy()
        return self._heap[0][0] if self._heap else None

    def _push(self, key: KeyT, due: float) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))

    def _tidy(self) -> None:
        """Drop entries that an earlier wish has replaced."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)


class WorkQueue(Generic[KeyT]):
    """A Schedule that workers can wait for, with a back-off for each key that fails."""

    def __init__(
        self,
        *,
        spacing_s: float = 0.2,
        first_delay_s: float = 0.5,
        longest_delay_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self._schedule: Schedule[KeyT] = Schedule(spacing_s=spacing_s)
        self._clock = clock or SystemClock()
        self._delays = (first_delay_s, longest_delay_s)
        self._failures: dict[KeyT, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._schedule)

    @property
    def depth(self) -> int:
        """Keys that are due and wait for a worker."""
        return self._schedule.depth(self._clock.monotonic())

    def add(self, key: KeyT, after_s: float = 0.0) -> None:
        """Want a key worked on after so many seconds, or sooner."""
        self._schedule.add(key, self._clock.monotonic() + after_s)
        self._arm()

    async def get(self) -> tuple[KeyT, float]:
        """Wait for a key; with the seconds that it waited for a worker."""
        while True:
            now = self._clock.monotonic()
            taken = self._schedule.take(now)
            if taken is not None:
                self._arm()
                return taken[0], now - taken[1]
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._arm()
            try:
                await waiter
            except asyncio.CancelledError:
                # The wake-up that it may have got belongs to another worker.
                self._arm()
                raise

    def done(self, key: KeyT) -> None:
        """The work on a key has ended well."""
        self._failures.pop(key, None)
        self._schedule.done(key)
        self._arm()

    def failed(self, key: KeyT, *, at_least_s: float = 0.0) -> float:
        """The work on a key has failed: it comes again after its back-off, which is returned."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        first_s, longest_s = self._delays
        delay_s = max(at_least_s, min(longest_s, first_s * 2.0 ** min(count, 16)))
        self._schedule.done(key)
        self.add(key, delay_s)
        return delay_s

    def _arm(self) -> None:
        """Wake one worker when the next key is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._schedule.next_due()
        if due is None:
            return
        delay_s = due - self._clock.monotonic()
        if delay_s > 0:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._arm)
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
