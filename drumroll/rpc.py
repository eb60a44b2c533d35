"""The client of the scheduler: every call is retried under one request id until its deadline.

A reply of an older incarnation than one that was seen comes from a scheduler that has been replaced: it is refused and
the call tried again. Each attempt has a deadline of its own, so a server that is stopped, or a host that is gone, costs
one attempt, not the call. Tokens appear in no message and no log.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar, cast

import grpc
from drumroll_proto.v1 import common_pb2, scheduler_pb2
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerStub
from google.protobuf.message import Message

from drumroll.channels import (
    CHANNEL_OPTIONS,
    MAX_MESSAGE_BYTES,
    SERVER_OPTIONS,
    host_of,
    open_channel,
    read_authorities,
)
from drumroll.clock import Clock, SystemClock
from drumroll.errors import JobError, SchedulerUnavailable
from drumroll.job import ResolvedJob
from drumroll.rpc_status import from_status

__all__ = [
    "CHANNEL_OPTIONS",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "SERVER_OPTIONS",
    "SchedulerClient",
    "read_token",
    "retry_delay",
]

logger = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
"""What this code speaks; for min_protocol and max_protocol of a RegisterRequest."""
DEFAULT_DEADLINE_S = 600.0
DEFAULT_ATTEMPT_S = 10.0
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_LOG_EVERY_S = 10.0


class _Request(Protocol):
    @property
    def header(self) -> common_pb2.CallHeader: ...


class _Reply(Protocol):
    @property
    def header(self) -> common_pb2.ReplyHeader: ...


RequestT = TypeVar("RequestT", bound=_Request)
ReplyT = TypeVar("ReplyT", bound=_Reply)


def read_token(job: ResolvedJob, role: str) -> str:
    """A role's bearer token.

    Raises:
        JobError: job.json names no file for the role, or the file cannot be read or is empty.
    """
    path = job.secrets.token_files.get(role)
    if path is None:
        raise JobError(f"job.json: secrets.tokenFiles has no {role!r}; the file with that role's token belongs there")
    try:
        token = Path(path).read_text().strip()
    except OSError as error:
        raise JobError(f"job.json: secrets.tokenFiles[{role!r}] cannot be read: {error}") from error
    if not token:
        raise JobError(f"job.json: secrets.tokenFiles[{role!r}]: {path} is empty; it must hold the token")
    return token


def retry_delay(attempt: int, draw: float) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 0); `draw` in [0, 1) spreads the callers."""
    ceiling = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt, 16))
    return ceiling * (0.5 + 0.5 * draw)


class SchedulerClient:
    """One role's connection to the scheduler of its job. Requests are given without a header.

    Every method raises:
        SchedulerUnavailable: no valid answer until the deadline.
        Fenced: the caller was replaced by a successor.
        ProtocolError: the scheduler refuses the call; AccessRefused where the token is at fault.
        UserError, JobFailed: as their names say.
    """

    def __init__(
        self,
        job: ResolvedJob,
        role: str,
        *,
        address: str | None = None,
        attempt_s: float = DEFAULT_ATTEMPT_S,
        clock: Clock | None = None,
    ) -> None:
        self._job_uid = job.uid
        self._address = address or job.endpoints.scheduler
        self._metadata = (("authorization", f"Bearer {read_token(job, role)}"),)
        self._attempt_s = attempt_s
        self._clock = clock or SystemClock()
        self._incarnation = 0
        self._logged_at = -_LOG_EVERY_S
        self._channel = open_channel(
            self._address, authorities=read_authorities(job), name=host_of(job.endpoints.scheduler)
        )
        self._stub = SchedulerStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        await self._channel.close()

    @property
    def incarnation(self) -> int:
        """The newest incarnation seen; 0 before the first reply."""
        return self._incarnation

    async def register(
        self, request: scheduler_pb2.RegisterRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.RegisterReply:
        """Register a replica or the trainer."""
        return await self._call(self._stub.Register, request, deadline_s=deadline_s)

    async def heartbeat(
        self, request: scheduler_pb2.HeartbeatRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.HeartbeatReply:
        """Say what is held; learn what is missing or to be aborted."""
        return await self._call(self._stub.Heartbeat, request, deadline_s=deadline_s)

    async def lease(
        self, request: scheduler_pb2.LeaseRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.LeaseReply:
        """Ask for samples to generate; waits up to `request.wait_ms` for some."""
        return await self._call(self._stub.Lease, request, wait_ms=request.wait_ms, deadline_s=deadline_s)

    async def report(
        self, request: scheduler_pb2.ReportRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.ReportReply:
        """Report samples that are in the stream."""
        return await self._call(self._stub.Report, request, deadline_s=deadline_s)

    async def hand_back(
        self, request: scheduler_pb2.HandBackRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.HandBackReply:
        """Give leases back, with what was generated so far."""
        return await self._call(self._stub.HandBack, request, deadline_s=deadline_s)

    async def next_step(
        self, request: scheduler_pb2.NextStepRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.NextStepReply:
        """The decision of a step; waits up to `request.wait_ms` for it."""
        return await self._call(self._stub.NextStep, request, wait_ms=request.wait_ms, deadline_s=deadline_s)

    async def commit(
        self, request: scheduler_pb2.CommitRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.CommitReply:
        """Say that a step is trained, a checkpoint durable, or samples lost."""
        return await self._call(self._stub.Commit, request, deadline_s=deadline_s)

    async def announce(
        self, request: scheduler_pb2.AnnounceRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.AnnounceReply:
        """Make a published version known."""
        return await self._call(self._stub.Announce, request, deadline_s=deadline_s)

    async def pin(
        self, request: scheduler_pb2.PinRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.PinReply:
        """Keep a version from being deleted, or no longer."""
        return await self._call(self._stub.Pin, request, deadline_s=deadline_s)

    async def set_live(
        self, request: scheduler_pb2.SetLiveRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.SetLiveReply:
        """Change what may change while the job runs."""
        return await self._call(self._stub.SetLive, request, deadline_s=deadline_s)

    async def status(
        self, request: scheduler_pb2.StatusRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> scheduler_pb2.StatusReply:
        """How the job stands."""
        return await self._call(self._stub.Status, request, deadline_s=deadline_s)

    async def watch(
        self, request: scheduler_pb2.WatchRequest, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> AsyncIterator[scheduler_pb2.WatchReply]:
        """How the job stands, again with every change, until the scheduler ends the stream at the job's end.

        Reconnects by itself; `deadline_s` is the longest silence.
        """
        message = self._with_header(request)
        attempt = 0
        heard_at = self._clock.monotonic()
        while True:
            call = self._stub.Watch(message, metadata=self._metadata)
            try:
                while isinstance(reply := await asyncio.wait_for(call.read(), deadline_s), scheduler_pb2.WatchReply):
                    attempt, heard_at = 0, self._clock.monotonic()
                    if self._accepts(reply.header.incarnation):
                        yield reply
                return
            except (TimeoutError, grpc.aio.AioRpcError) as error:
                await self._after_failure("Watch", error, attempt, heard_at + deadline_s)
                attempt += 1
            finally:
                call.cancel()

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ReplyT]",
        request: RequestT,
        *,
        deadline_s: float,
        wait_ms: int = 0,
    ) -> ReplyT:
        message = self._with_header(request)
        name = type(request).__name__.removesuffix("Request")
        give_up_at = self._clock.monotonic() + deadline_s
        attempt = 0
        while True:
            message.header.incarnation = self._incarnation
            left_s = max(0.001, give_up_at - self._clock.monotonic())
            timeout_s = min(self._attempt_s + wait_ms / 1000.0, left_s)
            try:
                reply = await method(message, timeout=timeout_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                await self._after_failure(name, error, attempt, give_up_at)
            else:
                if self._accepts(reply.header.incarnation):
                    return reply
                await self._after_failure(name, None, attempt, give_up_at)
            attempt += 1

    def _with_header(self, request: RequestT) -> RequestT:
        """A copy with a header; the caller's message stays as it is."""
        message = type(request)()
        cast(Message, message).CopyFrom(cast(Message, request))
        message.header.job_uid = self._job_uid
        message.header.request_id = request.header.request_id or uuid.uuid4().hex
        message.header.incarnation = self._incarnation
        return message

    def _accepts(self, incarnation: int) -> bool:
        if incarnation < self._incarnation:
            return False
        self._incarnation = incarnation
        return True

    async def _after_failure(
        self, name: str, error: grpc.aio.AioRpcError | TimeoutError | None, attempt: int, give_up_at: float
    ) -> None:
        """Wait before the next attempt, or raise what ends the call; no error: a replaced scheduler answered."""
        cause = "silence" if error is not None else "a replaced scheduler answered"
        if isinstance(error, grpc.aio.AioRpcError):
            cause = f"{error.code().name}: {error.details()}"
            permanent = from_status(error.code(), error.details())
            if permanent is not None:
                raise permanent from error
        now = self._clock.monotonic()
        delay_s = retry_delay(attempt, random.random())
        if now + delay_s >= give_up_at:
            raise SchedulerUnavailable(
                f"{name}: no answer from the scheduler at {self._address} after {attempt + 1} attempts; last: {cause}"
            ) from error
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            logger.warning("%s: the scheduler at %s does not answer (%s); trying again", name, self._address, cause)
        await asyncio.sleep(delay_s)
