"""The first process of a container is special: the kernel ignores signals that it has no handler for."""

import os
import signal
import sys
from types import FrameType

EXIT_TERMINATED = 143
"""128 + SIGTERM."""


def end_on_sigterm() -> None:
    """End at once on SIGTERM until the process installs a handler of its own; where it is not the first process, the
    kernel does that by itself."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)
