"""Runs a resolved job on this machine: starts its pods, watches the scheduler, ends everything in order.

The order of an end: rollouts drain while scheduler and store are there, then the trainer, the scheduler, the store.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from drumroll_proto.v1 import scheduler_pb2

from drumroll.errors import DrumrollError
from drumroll.rpc import SchedulerClient
from drumroll_cli.local.podspec import LocalPod
from drumroll_cli.local.preflight import full_disk
from drumroll_cli.local.rundir import RunDir, write_processes
from drumroll_cli.local.supervisor import Host, Supervisor

logger = logging.getLogger(__name__)

POLL_S = 0.5
END_GRACE_S = 30.0
"""What processes get to end by themselves once the job has."""
FAILED_GRACE_S = 10.0
"""What each role gets to end in once the job has failed: there is nothing left to save."""
STOP_ORDER = ("rollout", "trainer", "scheduler", "store")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    kind: Literal["complete", "failed", "stopped"]
    reason: str
    users_mistake: bool = False


@dataclass(slots=True)
class Board:
    """What is known of the run; the view reads it."""

    status: scheduler_pb2.StatusReply | None = None
    messages: list[str] = field(default_factory=list)
    stopping: bool = False

    @property
    def ended(self) -> bool:
        return self.status is not None and self.status.phase in ("Complete", "Failed")

    @property
    def progress(self) -> int:
        return self.status.steps_done + self.status.steps_decided if self.status else 0


class LocalRunner:
    """One run. `run` returns how it ended; `interrupt` asks it to drain, a second time to end at once."""

    def __init__(self, run: RunDir, pods: Sequence[LocalPod], gpus: dict[str, str], env: dict[str, str]) -> None:
        self.board = Board()
        self.on_message: Callable[[str], None] = lambda message: None
        self._run = run
        host = Host(
            logs=run.logs,
            cwd=run.job.layout.source_dir,
            env=env,
            job_ended=lambda: self.board.ended,
            progress=lambda: self.board.progress,
            tell=self._tell,
            changed=self._note_processes,
        )
        self.supervisors = [Supervisor(pod, host, gpus=gpus[pod.name]) for pod in pods]
        self._interrupted = asyncio.Event()
        self._killed = False

    def _note_processes(self) -> None:
        pids = {s.pod.name: s.pid for s in self.supervisors if s.pid is not None}
        with contextlib.suppress(OSError):  # a full disk is for the job itself to find
            write_processes(self._run.path, pids)

    def _tell(self, message: str) -> None:
        logger.info("%s", message)
        self.board.messages.append(message)
        self.on_message(message)

    def interrupt(self) -> None:
        """First call: drain and stop. Second call: end everything now."""
        if self._interrupted.is_set():
            self._killed = True
            for supervisor in self.supervisors:
                supervisor.kill()
            return
        self.board.stopping = True
        self._tell("stopping: rollouts hand their samples back (once more to end at once)")
        self._interrupted.set()

    async def run(self) -> Outcome:
        """Run to the end."""
        tasks = {asyncio.create_task(supervisor.run()): supervisor for supervisor in self.supervisors}
        poll = asyncio.create_task(self._poll())
        interrupted = asyncio.create_task(self._interrupted.wait())
        try:
            outcome = await self._until_end(tasks, poll, interrupted)
            await self._wind_down(tasks, outcome)
            return outcome
        finally:
            for supervisor in self.supervisors:
                supervisor.kill()
            for task in (poll, interrupted):
                task.cancel()
            await asyncio.gather(*tasks, poll, interrupted, return_exceptions=True)

    async def _until_end(
        self,
        tasks: dict["asyncio.Task[None]", Supervisor],
        poll: "asyncio.Task[None]",
        interrupted: "asyncio.Task[bool]",
    ) -> Outcome:
        """Wait for the job's end, a part that cannot go on, or the user."""
        while True:
            running: list[asyncio.Task[None] | asyncio.Task[bool]] = [task for task in tasks if not task.done()]
            if not poll.done():
                running.append(poll)
            await asyncio.wait([*running, interrupted], return_when=asyncio.FIRST_COMPLETED)
            if interrupted.done():
                return Outcome("stopped", "interrupted")
            if poll.done():
                poll.result()
            if self.board.ended and self.board.status is not None:
                kind: Literal["complete", "failed"] = "complete" if self.board.status.phase == "Complete" else "failed"
                return Outcome(kind, self.board.status.reason)
            for supervisor in self.supervisors:
                if supervisor.failure:
                    return self._failed(supervisor)

    def _failed(self, supervisor: Supervisor) -> Outcome:
        """What is said of a part that cannot go on; a full disk explains whatever it said itself."""
        full = full_disk(self._run.path)
        if full is not None:
            return Outcome("failed", full)
        return Outcome("failed", supervisor.failure or "", supervisor.users_mistake)

    async def _wind_down(self, tasks: dict["asyncio.Task[None]", Supervisor], outcome: Outcome) -> None:
        """End what still runs; where the job has ended, trainer and rollouts first get time to end by themselves."""
        if outcome.kind == "complete":
            own = [task for task, s in tasks.items() if s.pod.role in ("rollout", "trainer") and not task.done()]
            if own:
                await asyncio.wait(own, timeout=END_GRACE_S)
        for role in STOP_ORDER:
            group = {task: s for task, s in tasks.items() if s.pod.role == role}
            for supervisor in group.values():
                supervisor.stop()
            pending = [task for task in group if not task.done()]
            grace = max((s.pod.grace_s for s in group.values()), default=0.0)
            if outcome.kind == "failed":
                grace = min(grace, FAILED_GRACE_S)
            if pending and not self._killed:
                _, pending_set = await asyncio.wait(pending, timeout=grace)
                pending = list(pending_set)
            for task in pending:
                group[task].kill()
            if pending:
                await asyncio.wait(pending, timeout=10.0)

    async def _poll(self) -> None:
        """Keep the status fresh until the job has ended."""
        async with SchedulerClient(self._run.job, "viewer", attempt_s=5.0) as client:
            while not self.board.ended:
                with contextlib.suppress(DrumrollError):
                    self.board.status = await client.status(scheduler_pb2.StatusRequest(), deadline_s=5.0)
                await asyncio.sleep(POLL_S)
