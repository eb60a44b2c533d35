"""The gRPC edge: who calls, whether it is meant for this job, and errors as status codes. Decides nothing else."""

# ruff: noqa: N802 - the methods have gRPC's names

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerServicer

from drumroll.errors import DrumrollError, Fenced, TemporaryError
from drumroll.rpc_status import to_status
from drumroll_scheduler import translate
from drumroll_scheduler.access import check_header, check_role, role_of
from drumroll_scheduler.core import Core
from drumroll_scheduler.replies import Replies
from drumroll_scheduler.rollout_calls import RolloutCalls
from drumroll_scheduler.status import status_reply
from drumroll_scheduler.trainer_calls import TrainerCalls

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything that calls are answered with."""

    core: Core
    rollout: RolloutCalls
    trainer: TrainerCalls


class SchedulerService(SchedulerServicer):
    """See the module."""

    def __init__(self, *, job_uid: str, tokens: Mapping[str, str], desk: Desk, watch_every_s: float = 0.5) -> None:
        self._job_uid = job_uid
        self._tokens = tokens
        self._watch_every_s = watch_every_s
        self._replies: Replies[Any] = Replies()
        self._desk = desk

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterReply:
        async def register(desk: Desk) -> pb.RegisterReply:
            role = translate.role(request)
            check_role(f"Register as {role}", role_of(context.invocation_metadata() or (), self._tokens))
            return await (desk.rollout if role == "rollout" else desk.trainer).register(request)

        return await self._answer("Register", request, context, register, once=True)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        return await self._answer("Heartbeat", request, context, lambda desk: desk.rollout.heartbeat(request))

    async def Lease(self, request: pb.LeaseRequest, context: Context) -> pb.LeaseReply:
        return await self._answer("Lease", request, context, lambda desk: desk.rollout.lease(request))

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportReply:
        return await self._answer("Report", request, context, lambda desk: desk.rollout.report(request), once=True)

    async def HandBack(self, request: pb.HandBackRequest, context: Context) -> pb.HandBackReply:
        return await self._answer("HandBack", request, context, lambda desk: desk.rollout.hand_back(request), once=True)

    async def NextStep(self, request: pb.NextStepRequest, context: Context) -> pb.NextStepReply:
        return await self._answer("NextStep", request, context, lambda desk: desk.trainer.next_step(request))

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitReply:
        return await self._answer("Commit", request, context, lambda desk: desk.trainer.commit(request), once=True)

    async def Announce(self, request: pb.AnnounceRequest, context: Context) -> pb.AnnounceReply:
        return await self._answer("Announce", request, context, lambda desk: desk.trainer.announce(request), once=True)

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinReply:
        return await self._answer("Pin", request, context, lambda desk: desk.trainer.pin(request), once=True)

    async def SetLive(self, request: pb.SetLiveRequest, context: Context) -> pb.SetLiveReply:
        async def set_live(desk: Desk) -> pb.SetLiveReply:
            records = desk.core.policy.set_live(request.name, request.value)
            # An operator that has just started says again what is so already.
            if desk.core.story.live.get(request.name) != request.value:
                desk.core.take(records)
            await desk.core.durable()
            return pb.SetLiveReply()

        return await self._answer("SetLive", request, context, set_live, once=True)

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        return await self._answer("Status", request, context, self._status)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchReply]:
        last = None
        while True:
            status = await self._answer("Watch", request, context, self._status)
            if last is None or status.SerializeToString() != last:
                last = status.SerializeToString()
                yield pb.WatchReply(header=status.header, status=status)
            if status.phase in ("Complete", "Failed"):
                return
            await asyncio.sleep(self._watch_every_s)

    async def _status(self, desk: Desk) -> pb.StatusReply:
        return status_reply(desk.core.view())

    async def _answer(
        self,
        method: str,
        request: Any,
        context: Context,
        call: Callable[[Desk], Awaitable[ReplyT]],
        *,
        once: bool = False,
    ) -> ReplyT:
        """Check the call, make its reply (for `once`: a single time per request id), put the header on it."""
        desk = self._desk
        try:
            self._admit(method, request.header, context)
            if once:
                reply: Any = await self._replies.once(f"{method} {request.header.request_id}", lambda: call(desk))
            else:
                reply = await call(desk)
        except DrumrollError as error:
            # It is this scheduler that was replaced, not its caller: that one asks the successor.
            replaced = isinstance(error, Fenced) and desk.core.journal.fenced
            code, detail = to_status(TemporaryError(f"replaced: {error}") if replaced else error)
            await context.abort(code, detail)
        reply.header.incarnation = desk.core.incarnation
        return reply  # type: ignore[no-any-return]

    def _admit(self, method: str, header: common_pb2.CallHeader, context: Context) -> None:
        check_role(method, role_of(context.invocation_metadata() or (), self._tokens))
        check_header(header, job_uid=self._job_uid, incarnation=self._desk.core.incarnation)
