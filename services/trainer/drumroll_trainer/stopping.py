"""SIGTERM: stop at once, but for the few moments in which a finished step is being told to the scheduler."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)

EXIT_TERMINATED = 143
"""128 + SIGTERM: the job is not done; a successor replays what was not committed."""


class Stop:
    """Raises SystemExit in the main thread on SIGTERM, later where `shield` is entered."""

    def __init__(self) -> None:
        self._shields = 0
        self._wanted = False

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """What happens inside is finished first."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        self._leave()

    def request(self) -> None:
        """What a signal does."""
        self._wanted = True
        self._leave()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.request()

    def _leave(self) -> None:
        if self._wanted and not self._shields:
            raise SystemExit(EXIT_TERMINATED)
