"""Keeps one pod's process running: init containers, restarts with back-off, liveness probes, an orderly end."""

import asyncio
import http.client
import logging
import signal
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drumroll.errors import EXIT_USER
from drumroll_cli.local.backoff import after_exit, describe
from drumroll_cli.local.podspec import Container, LocalPod, Probe
from drumroll_cli.local.process import Process, last_words

logger = logging.getLogger(__name__)

STEADY_S = 120.0
"""A process that ran for so long has not failed "in a row"."""

AHEAD_S = 5.0
"""How far a process may be ahead of what the runner knows of the job's end."""

State = Literal["waiting", "preparing", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Host:
    """What supervisors share."""

    logs: Path
    cwd: str
    env: Mapping[str, str]
    """What every process inherits."""
    job_ended: Callable[[], bool]
    progress: Callable[[], int]
    """Rises whenever the job makes progress."""
    tell: Callable[[str], None]
    """Shows people a line."""
    changed: Callable[[], None]
    """A process has started or ended."""


def answers_http(url: str, timeout_s: float) -> bool:
    """Whether a GET is answered by a status from 200 to 399, as a kubelet judges it."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            return 200 <= int(reply.status) < 400
    except (OSError, http.client.HTTPException):
        return False


async def end_task(task: "asyncio.Task[None]") -> None:
    """Cancel until it has ended: a cancellation can get lost in a wait that is over at the same moment."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)


class Supervisor:
    """One pod. `run` returns when it is done for good; `failure` then says what went wrong, if anything did."""

    def __init__(self, pod: LocalPod, host: Host, *, gpus: str) -> None:
        self.pod = pod
        self.state: State = "waiting"
        self.restarts = 0
        self.failure: str | None = None
        self.users_mistake = False
        self._host = host
        self._gpus = gpus
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._log = host.logs / f"{pod.name}.log"

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process else None

    async def run(self) -> None:
        """Run the pod until its process has done its work, cannot, or is stopped."""
        failures, seen = 0, self._host.progress()
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set() or (code == 0 and await self._job_is_over()):
                break
            if self._host.progress() != seen or time.monotonic() - began > STEADY_S:
                failures = 0
            failures, seen = failures + (code != 0), self._host.progress()
            # An end without a failure before the job's end is a pod that was taken away: another takes its place.
            restart = "Always" if code == 0 else self.pod.restart
            step = after_exit(code, restart=restart, failures=failures, name=self.pod.name)
            if step.action == "give_up":
                words = last_words(self._log)
                self.failure = f"{step.reason}\n{words}" if words else step.reason
                self.users_mistake = code == EXIT_USER
                self.state = "failed"
                return
            if step.action == "done":
                if step.reason:
                    self._host.tell(step.reason)
                break
            await self._pause_before_restart(code, step.delay_s)
        self.state = "done"

    async def _pause_before_restart(self, code: int, delay_s: float) -> None:
        self.state = "waiting"
        self.restarts += 1
        self._host.tell(f"{self.pod.name} ended with {describe(code)}; starting it again in {delay_s:.1f} s")
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        except TimeoutError:
            return

    async def _job_is_over(self) -> bool:
        """A process that ended well may be a little ahead of what the runner knows."""
        until = time.monotonic() + AHEAD_S
        while time.monotonic() < until:
            if self._host.job_ended() or self._stopping.is_set():
                return True
            await asyncio.sleep(0.1)
        return False

    async def _run_once(self) -> int:
        """Init containers, then the container; the exit code that ends this life of the pod."""
        self._make_directories()
        for container in self.pod.init:
            self.state = "preparing"
            code = await self._run_container(container)
            if code != 0:
                return code
        self.state = "running"
        return await self._run_container(self.pod.container)

    def _make_directories(self) -> None:
        for directory in self.pod.directories:
            Path(directory).mkdir(parents=True, exist_ok=True)

    async def _run_container(self, container: Container) -> int:
        env = self._environment(container)
        process = await Process.start(container.command, env, log=self._log, cwd=self._host.cwd)
        self._process = process
        self._host.changed()
        if self._stopping.is_set():
            process.send(signal.SIGTERM)
        watch = asyncio.create_task(self._watch(container.probe, process, env)) if container.probe else None
        try:
            return await process.wait()
        finally:
            self._process = None
            self._host.changed()
            if watch:
                await end_task(watch)

    def _environment(self, container: Container) -> dict[str, str]:
        env = {**self._host.env, **container.env, "CUDA_VISIBLE_DEVICES": self._gpus}
        for name, source in container.from_shell.items():
            if source in self._host.env:
                env[name] = self._host.env[source]
        return env

    async def _watch(self, probe: Probe, process: Process, env: Mapping[str, str]) -> None:
        """Kill a process whose probe fails too often."""
        await asyncio.sleep(probe.initial_delay_s)
        failures = 0
        while failures < probe.failures:
            failures = 0 if await self._answers(probe, env) else failures + 1
            await asyncio.sleep(probe.period_s)
        self._host.tell(
            f"{self.pod.name} (pid {process.pid}) does not answer its probe: stacks to its log, then killed"
        )
        process.send(signal.SIGUSR1)
        await asyncio.sleep(1.0)
        process.signal_group(signal.SIGKILL)

    async def _answers(self, probe: Probe, env: Mapping[str, str]) -> bool:
        if probe.url is not None:
            return await asyncio.to_thread(answers_http, probe.url, probe.timeout_s)
        log = self._host.logs / "probes.log"
        check = await Process.start(probe.command, env, log=log, cwd=self._host.cwd)
        try:
            # Not wait_for: it loses a cancellation that comes as the probe ends.
            async with asyncio.timeout(probe.timeout_s):
                return await check.wait() == 0
        except TimeoutError:
            return False
        finally:
            check.signal_group(signal.SIGKILL)
            await check.wait()

    def stop(self) -> None:
        """Ask the process to end (SIGTERM) and start no other."""
        self._stopping.set()
        if self._process:
            self._process.send(signal.SIGTERM)

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        if self._process:
            self._process.signal_group(signal.SIGKILL)
