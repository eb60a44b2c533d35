"""One reward process as its replica sees it: started, asked, watched, ended with everything it started.

The process is spawned (never forked: the replica has threads of vLLM and gRPC), leads its own session and group, and
is killed with all its descendants when a call takes too long or its memory runs over. Thread-safe as long as one
thread uses it at a time.
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
from typing import Any

from drumroll import environment
from drumroll.errors import RewardError
from drumroll_rollout.rewards.frames import FrameError, FrameTimeout, read_frame, write_frame
from drumroll_rollout.rewards.results import RewardCrash
from drumroll_rollout.rewards.sandbox.processes import descendants, kill_tree, resident_bytes
from drumroll_rollout.rewards.setup import WorkerSetup, worker_environment

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 300.0
"""Longest time for a reward's imports."""
_END_TIMEOUT_S = 5.0


class _OverMemory(Exception):
    def __init__(self, used: int) -> None:
        super().__init__(used)
        self.used = used


class RewardWorker:
    """A running reward process. It loads its reward by itself; the first call waits for that."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._ready = False
        self._fault: str | None = None
        self._process = subprocess.Popen(
            # -P: a file beside the job that is named like a library must not take its place.
            [sys.executable, "-P", "-m", "drumroll_rollout.rewards.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=setup.source_dir,
            env=worker_environment(environment.copy(), setup.env_names),
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        # It fits into the pipe; a process that has died already shows at the first read.
        with contextlib.suppress(FrameError):
            write_frame(self._input.fileno(), {"setup": setup.to_message()})

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self) -> None:
        """Wait until the reward is imported.

        Raises:
            RewardError: it does not import; the message names module and reason.
            RewardCrash: its process ended or hung on the way.
        """
        if self._fault is not None:
            raise RewardError(self._fault)
        if self._ready:
            return
        try:
            self._exchange(None, LOAD_TIMEOUT_S, "loading")
        except RewardError as error:
            self._fault = str(error)
            raise
        self._ready = True

    def call(self, request: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """One call of the reward.

        Raises:
            RewardError: the function broke its contract.
            RewardCrash: it raised, took longer than `timeout_s`, or ran over its memory. After the last two the process
                is gone: `alive` is False.
        """
        self.load()
        return self._exchange(request, timeout_s, "scoring")

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not _has_exited(self._process.pid)

    def kill(self) -> None:
        """End the process and all that it started, from any thread; a call that is under way crashes. Then `close`."""
        if self._process.returncode is None:
            kill_tree(self._process.pid)

    def close(self) -> None:
        """`kill`, and release what is held for the process."""
        self.kill()
        for pipe in (self._input, self._output):
            pipe.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.error("reward process %d does not end", self._process.pid)

    def _exchange(self, message: dict[str, Any] | None, timeout_s: float, doing: str) -> dict[str, Any]:
        started = time.monotonic()
        try:
            if message is not None:
                write_frame(self._input.fileno(), message)
            left = max(0.001, timeout_s - (time.monotonic() - started))
            reply = read_frame(self._output.fileno(), timeout_s=left, tick=self._check_memory)
        except FrameTimeout:
            self.close()
            raise RewardCrash(f"{self._name} was ended after {timeout_s:g} s of {doing}") from None
        except _OverMemory as error:
            self.close()
            raise RewardCrash(
                f"{self._name} was ended with {error.used >> 20} MiB, over reward.memory of "
                f"{self._setup.memory_bytes >> 20} MiB"
            ) from None
        except FrameError as error:
            self.close()
            code = self._process.returncode
            raise RewardCrash(f"{self._name} ended by itself while {doing} (exit code {code}): {error}") from error
        if "fault" in reply:
            raise RewardError(str(reply["fault"]))
        if "crash" in reply:
            raise RewardCrash(str(reply["crash"]))
        return reply

    @property
    def _name(self) -> str:
        named = f" {self._setup.function}" if self._setup.function else ""
        return f"the {self._setup.type} reward{named}"

    def _check_memory(self) -> None:
        used = resident_bytes([self._process.pid, *descendants(self._process.pid)])
        if used > self._setup.memory_bytes:
            raise _OverMemory(used)


def _has_exited(pid: int) -> bool:
    """Without reaping it: as long as a process is not reaped, its id and its group's id name nothing else."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
