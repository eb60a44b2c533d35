"""Logging of a process: one line per event on standard error, stacks on SIGUSR1. Called in `__main__` alone."""

import faulthandler
import logging
import signal
import sys


def set_up(process: str, *, level: int = logging.INFO) -> None:
    """Send all logging to standard error as `time level process logger: message`; SIGUSR1 dumps all stacks there."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format=f"%(asctime)s.%(msecs)03d %(levelname)s {process} %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
