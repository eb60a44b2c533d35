"""Time as an argument: loops take a Clock, tests give them one that they move by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one to measure with, one to show to people."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Unix seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.now = start

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`."""
        self.now += seconds
