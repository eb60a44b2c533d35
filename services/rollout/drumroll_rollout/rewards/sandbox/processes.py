"""Trees of processes, by /proc: who descends from whom, how much memory they hold, and ending all of them.

A process group is not enough: code can leave it with setsid. A process that called `become_subreaper` keeps even such
orphans among its descendants, as long as it lives; so it is ended last.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def become_subreaper() -> bool:
    """Orphaned descendants of this process become its children instead of init's. False where the kernel refuses."""
    return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def descendants(pid: int) -> list[int]:
    """All live descendants of a process; zombies are left out."""
    found: list[int] = []
    frontier = [pid]
    while frontier:
        children = _children(frontier.pop())
        frontier.extend(children)
        found.extend(children)
    return [child for child in found if _state(child) not in ("Z", "X", None)]


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            children.extend(int(child) for child in (task / "children").read_text().split())
    except OSError:
        # It has ended meanwhile.
        return children
    return children


def _state(pid: int) -> str | None:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of processes together, shared pages counted for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in pids:
        try:
            total += int((_PROC / str(pid) / "statm").read_text().split()[1]) * page
        except (OSError, IndexError):
            continue
    return total


def kill_descendants(pid: int, *, deadline_s: float = 5.0) -> None:
    """End every descendant of a process but not itself. They are stopped first, so that none forks away meanwhile."""
    end = time.monotonic() + deadline_s
    while (alive := descendants(pid)) and time.monotonic() < end:
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for child in alive:
                _signal(child, sign)


def kill_tree(pid: int) -> None:
    """End a process that leads its own group, everything in that group, and everything that descends from it."""
    _signal(pid, signal.SIGSTOP)
    kill_descendants(pid)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        _signal(pid, signal.SIGKILL)


def kill_marked(marker: bytes, *, deadline_s: float = 5.0) -> None:
    """End every process that was started with a text in its environment, wherever it has gone."""
    end = time.monotonic() + deadline_s
    while (marked := [pid for pid in _all_pids() if marker in _environment(pid)]) and time.monotonic() < end:
        for pid in marked:
            _signal(pid, signal.SIGKILL)


def _all_pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit() and path.name != str(os.getpid())]


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""


def _signal(pid: int, sign: signal.Signals) -> None:
    try:
        os.kill(pid, sign)
    except (ProcessLookupError, PermissionError):
        return
