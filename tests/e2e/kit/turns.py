"""Turns: tests that disturb the whole cluster run alone, all others beside each other, whatever process they are in."""

import contextlib
import fcntl
from collections.abc import Iterator

from kit.node import STATE


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Hold a turn. Who waits for a turn alone is not overtaken: the gate lets nobody pass meanwhile."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "gate.lock").open("w") as gate, (STATE / "turn.lock").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
