"""Turns: tests that disturb the whole cluster run alone, all others beside each other, whatever process they are in."""

import contextlib
import fcntl
import hashlib
from collections.abc import Iterable, Iterator

from kit.node import STATE

from drumroll.testing import eventually_sync


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Hold a turn. Who waits for a turn alone is not overtaken: the gate lets nobody pass meanwhile."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "gate.lock").open("w") as gate, (STATE / "turn.lock").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


class Finished:
    """The tests of a run that are over, whatever process they ran in."""

    def __init__(self, run: str) -> None:
        self._folder = STATE / f"finished-{run}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def add(self, test: str) -> None:
        (self._folder / self._name(test)).touch()

    def wait_for(self, tests: Iterable[str], deadline_s: float = 1500.0) -> None:
        """Until all of these are over."""
        names = {test: self._folder / self._name(test) for test in tests}

        def over() -> bool:
            return all(path.exists() for path in names.values())

        eventually_sync(over, deadline_s, "the other tests are over", pause_s=0.5)

    @staticmethod
    def _name(test: str) -> str:
        return hashlib.sha256(test.encode()).hexdigest()[:24]
