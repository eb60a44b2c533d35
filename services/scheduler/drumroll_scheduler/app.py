"""The scheduler's process: opens the ledger, serves, keeps house, ends with the job.

Its tasks: the journal's writer (the only one to append), the timer, housekeeping. The first failure of any of them ends
the process; the supervisor starts a new one, which goes on where the ledger stands.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from drumroll_planner import records as r
from drumroll_proto.v1.scheduler_pb2_grpc import add_SchedulerServicer_to_server

from drumroll import channels
from drumroll.clock import Clock, SystemClock
from drumroll.errors import EXIT_OK, TemporaryError
from drumroll.farewell import leave_report
from drumroll.health import answering
from drumroll.job import ResolvedJob
from drumroll.rpc import SERVER_OPTIONS, read_token
from drumroll.store import Redis, check, connect, require_sound, retrying
from drumroll.stream import SampleStream
from drumroll_scheduler.archive import Archive
from drumroll_scheduler.core import Core
from drumroll_scheduler.house import keep_house, pass_time, plan_passes
from drumroll_scheduler.opening import Accept, Opened, open_job
from drumroll_scheduler.recovery import StoreRecovery, take_losses
from drumroll_scheduler.rollout_calls import RolloutCalls
from drumroll_scheduler.service import Desk, SchedulerService
from drumroll_scheduler.status import final_report
from drumroll_scheduler.sweeper import Sweeper
from drumroll_scheduler.trainer_calls import TrainerCalls

logger = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_STOPPED = 143
"""Stopped by a signal: the job goes on with the next scheduler."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Times of the process itself, in seconds."""

    tick_s: float = 0.1
    housekeeping_s: float = 1.0
    linger_s: float = 5.0
    """How long the end of the job is told to those who ask."""
    give_up_s: float = 600.0
    """How long the store may be away."""
    bind_s: float = 60.0
    """How long a predecessor may hold the address."""
    archive_every_records: int = 5000


def bind_address(endpoint: str) -> str:
    """Where to listen: an IP address as it is; a name belongs to a service in front of this host's own addresses."""
    host, _, port = endpoint.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return f"127.0.0.1:{port}" if host == "localhost" else f"[::]:{port}"
    return endpoint


async def first_of(main: Coroutine[Any, Any, T], tasks: Sequence[asyncio.Task[None]]) -> T:
    """The result of `main`, unless one of the tasks fails first: then its error."""
    running = asyncio.ensure_future(main)
    try:
        done, _ = await asyncio.wait([running, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
        return await running
    finally:
        running.cancel()


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: a library's own timeout may swallow a cancellation that meets it."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.2)
    await asyncio.gather(*tasks, return_exceptions=True)


class App:
    """See the module."""

    def __init__(
        self,
        job: ResolvedJob,
        *,
        accept: Accept | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._job = job
        self._accept = accept or Accept()
        self._settings = settings or Settings()
        self._clock = clock or SystemClock()
        self._stop = asyncio.Event()
        self.serving = asyncio.Event()
        """Set once calls are answered."""
        self.port = 0
        """Where they are answered."""
        self.core: Core | None = None

    def stop(self) -> None:
        """End the process soon, with all that is known in the ledger."""
        self._stop.set()

    async def run(self) -> int:
        """Serve until the job has ended, or `stop`; the exit code.

        Raises:
            Fenced: a successor has taken over.
            DrumrollError: as `open_job`; StoreUnavailable also later.
        """
        redis = connect(self._job, "scheduler")
        deadline_s = self._settings.give_up_s
        try:
            require_sound(await retrying(lambda: check(redis), deadline_s=deadline_s))
            return await self._serve(await retrying(lambda: self._open(redis), deadline_s=deadline_s), redis)
        finally:
            await redis.aclose()

    async def _open(self, redis: Redis) -> Opened:
        give_up_s = self._settings.give_up_s
        return await open_job(self._job, redis, clock=self._clock, accept=self._accept, give_up_s=give_up_s)

    async def _serve(self, opened: Opened, redis: Redis) -> int:
        settings, uid, journal_dir = self._settings, self._job.uid, self._job.layout.journal_dir
        core = self.core = opened.core
        stream, records = SampleStream(redis, uid), settings.archive_every_records
        archive = Archive(core, job_uid=uid, journal_dir=journal_dir, every_records=records)
        recovery = StoreRecovery(core, redis, stream, job_uid=uid, journal_dir=journal_dir)
        sweeper = Sweeper(core, stream)
        if opened.store_was_lost:
            await take_losses(core, stream, "the store came back empty; rebuilt from checkpoint and archive")
        tasks = [
            asyncio.create_task(core.journal.run(core.settle, recovery.rebuild)),
            asyncio.create_task(pass_time(core, every_s=settings.tick_s)),
            asyncio.create_task(keep_house(core, archive, sweeper, every_s=settings.housekeeping_s)),
            asyncio.create_task(plan_passes(core)),
        ]
        server: grpc.aio.Server | None = None
        try:
            await first_of(core.durable(), tasks)
            server = await first_of(self._listen(self._desk(core, archive)), tasks)
            async with answering(self._why_not_ready):
                code = await first_of(self._until_end(core, archive, sweeper), tasks)
            await server.stop(0.2)
            await first_of(archive.close_segment(), tasks)
            if core.policy.outcome is not None:
                leave_report(final_report(core.view()))
            return code
        finally:
            if server is not None:
                await server.stop(None)
            await end_all(tasks)

    def _why_not_ready(self) -> str | None:
        return "it stops" if self._stop.is_set() else None

    def _desk(self, core: Core, archive: Archive) -> Desk:
        spec = self._job.spec
        heartbeat_s = spec.scheduler.heartbeat_seconds
        every = spec.trainer.checkpoint.every_steps
        return Desk(
            core=core,
            rollout=RolloutCalls(core, heartbeat_s=heartbeat_s, sends_away=not self._job.operator_scales),
            trainer=TrainerCalls(core, archive, heartbeat_s=heartbeat_s, checkpoint_every=every),
        )

    async def _listen(self, desk: Desk) -> grpc.aio.Server:
        """Answer calls; a predecessor that is being replaced may still hold the address for a while."""
        tokens = {role: read_token(self._job, role) for role in self._job.secrets.token_files}
        service = SchedulerService(job_uid=self._job.uid, tokens=tokens, desk=desk)
        address = bind_address(self._job.endpoints.scheduler)
        identity = channels.read_identity(self._job)

        async def listen() -> grpc.aio.Server:
            server = grpc.aio.server(options=SERVER_OPTIONS)
            add_SchedulerServicer_to_server(service, server)
            try:
                self.port = channels.listen(server, address, identity)
            except RuntimeError as error:
                raise TemporaryError(f"cannot listen at {address}: {error}") from error
            await server.start()
            return server

        server = await _while_temporary(listen, deadline_s=self._settings.bind_s)
        self.serving.set()
        logger.info("serving job %s at port %d as incarnation %d", self._job.uid, self.port, desk.core.incarnation)
        return server

    async def _until_end(self, core: Core, archive: Archive, sweeper: Sweeper) -> int:
        stopped, ended = asyncio.create_task(self._stop.wait()), asyncio.create_task(core.ended.wait())
        try:
            await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
            await core.durable()
            outcome = core.policy.outcome
            if outcome is None:
                logger.info("stopped; the job goes on with the next scheduler")
                return EXIT_STOPPED
            await self._finish(outcome, archive, sweeper)
            await asyncio.wait([stopped], timeout=self._settings.linger_s)
            # Whichever way it ended, this process has done its work: the report says the rest.
            return EXIT_OK
        finally:
            stopped.cancel()
            ended.cancel()

    async def _finish(self, outcome: r.JobEnded, archive: Archive, sweeper: Sweeper) -> None:
        if outcome.outcome is r.JobOutcome.COMPLETE:
            logger.info("the job is complete: %s", outcome.reason)
        else:
            logger.error("the job has failed: %s", outcome.reason)
        await archive.close_segment()
        await sweeper.clear()


async def _while_temporary(call: Callable[[], Awaitable[grpc.aio.Server]], *, deadline_s: float) -> grpc.aio.Server:
    give_up_at = asyncio.get_running_loop().time() + deadline_s
    while True:
        try:
            return await call()
        except TemporaryError as error:
            if asyncio.get_running_loop().time() >= give_up_at:
                raise
            logger.warning("%s; trying again", error)
        await asyncio.sleep(1.0)
