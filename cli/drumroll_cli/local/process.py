"""One process of a pod, with its own process group, log file and last breath.

Nothing outlives the runner: the kernel kills a process when the runner dies, and whatever a process leaves behind in
its group is killed when it ends.
"""

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make grandchildren whose parent died children of this process, so that they can be found and ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with(parent: int) -> None:
    """In the child: be killed when the parent ends, which may be now."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Process:
    """A running process."""

    def __init__(self, child: asyncio.subprocess.Process, log: Path) -> None:
        self._child = child
        self.log = log

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], *, log: Path, cwd: str) -> "Process":
        """Start it; output is appended to `log`. `python` means this interpreter."""
        program = [sys.executable, *command[1:]] if command[0] == "python" else list(command)
        with log.open("ab") as output:
            child = await asyncio.create_subprocess_exec(
                *program,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=functools.partial(_die_with, os.getpid()),
            )
        return cls(child, log)

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait(self) -> int:
        """Wait for its end, then end what is left of its group. Exit code, negative for a signal."""
        code = await self._child.wait()
        self.signal_group(signal.SIGKILL)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone: it decides about its children."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that share its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


def last_words(log: Path, *, lines: int = 5) -> str:
    """The last error line of a log, or its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65_536))
            tail = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    errors = [line for line in tail if " ERROR " in line]
    return errors[-1] if errors else "\n".join(tail[-lines:])
