"""Where a step's time went: named parts, reset when the step is told."""

from collections.abc import Iterator
from contextlib import contextmanager

from drumroll.clock import Clock


class Timings:
    """Sums of seconds by part. A checkpoint comes after its step is told, so its time counts to the next one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: dict[str, float] = {}
        self._began = clock.monotonic()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time inside to `part`."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + self._clock.monotonic() - began

    def begin_step(self) -> None:
        """The next step counts from here."""
        self._parts = {}
        self._began = self._clock.monotonic()

    def end_step(self, *, num_tokens: float, num_processes: int) -> dict[str, float]:
        """`timing_s/<part>`, `timing_s/step` since the last step, and `perf/throughput`: tokens a second a process."""
        elapsed = self._clock.monotonic() - self._began
        stats = {f"timing_s/{part}": seconds for part, seconds in self._parts.items()}
        stats["timing_s/step"] = elapsed
        stats["perf/throughput"] = num_tokens / elapsed / num_processes if elapsed > 0 else 0.0
        self.begin_step()
        return stats
