"""When a process that ended is started again, and when not: pure."""

import signal
from dataclasses import dataclass
from typing import Literal

from drumroll.errors import EXIT_FENCED, EXIT_USER

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 30.0
MOST_FAILURES = 6
"""Failures in a row without any progress of the job after which it cannot go on."""


@dataclass(frozen=True, slots=True)
class Next:
    """What to do after a process has ended."""

    action: Literal["done", "restart", "give_up"]
    delay_s: float = 0.0
    reason: str = ""


def after_exit(code: int, *, restart: str, failures: int, name: str) -> Next:
    """`failures`: ends in a row with a failure, this one included, since the job last made progress."""
    if code == EXIT_FENCED:
        return Next("done", reason=f"{name} was replaced by a successor")
    if code == EXIT_USER:
        return Next("give_up", reason=f"{name} cannot run: see its last log lines")
    if code == 0 and restart != "Always":
        return Next("done")
    if restart == "Never":
        return Next("give_up", reason=f"{name} ended with {describe(code)}")
    if failures >= MOST_FAILURES:
        return Next(
            "give_up", reason=f"{name} ended {failures} times in a row without progress, last with {describe(code)}"
        )
    return Next("restart", min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** max(0, failures - 1)))


def describe(code: int) -> str:
    """An exit code in words; negative ones are signals."""
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:  # real-time signals have no names
            return f"signal {-code}"
    return f"exit code {code}"
