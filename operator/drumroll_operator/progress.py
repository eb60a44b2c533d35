"""Asks the scheduler of every running job how it stands, seldom enough to be cheap and often enough to be news.

All jobs together are asked at most so many times a second, however many there are. Schedulers that do not answer are
asked less and less, on a few connections of their own: a thousand dead ones delay no living one.
"""

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import grpc
from drumroll_proto.v1 import common_pb2, scheduler_pb2
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerStub

from drumroll.channels import open_channel
from drumroll.clock import Clock, SystemClock
from drumroll.errors import DrumrollError
from drumroll.rpc_status import from_status
from drumroll_operator.observed import Progress
from drumroll_operator.scheduler_view import progress_of
from drumroll_operator.watch import ObjectName
from drumroll_operator.work_queue import Schedule

logger = logging.getLogger(__name__)

_EVERY_S = 2.0
_CALLS_PER_S = 40.0
_DEAD_FIRST_S = 2.0
_DEAD_LONGEST_S = 30.0
_TIMEOUT_S = 3.0
_ANSWERING = 16
_DEAD = 8
_OPEN_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class Target:
    """A scheduler to ask."""

    job: ObjectName
    uid: str
    address: str
    """host:port"""
    token: str
    """Of the role operator."""
    authorities: bytes | None = None
    """PEM; encrypted where given."""
    server: str = ""
    """Name that its certificate must hold."""


class Refused(DrumrollError):
    """The scheduler refuses a call, or does not answer it; the message says why."""

    def __init__(self, message: str, *, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary
        """It may work later."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known of one scheduler."""

    progress: Progress | None = None
    unanswered_since: float | None = None
    """Unix seconds; see Observed."""
    incarnation: int = 0


@dataclass(slots=True)
class _State:
    target: Target
    answers: Answers = Answers()
    failures: int = 0


Channels = Callable[[Target], grpc.aio.Channel]


class Poller(Protocol):
    """What the reconciler needs of the schedulers."""

    def want(self, target: Target) -> None:
        """Ask this scheduler from now on."""
        ...

    def drop(self, uid: str) -> None:
        """Ask no more; what is known stays until `forget`."""
        ...

    def answers(self, uid: str) -> Answers:
        """What is known of a job."""
        ...

    async def set_live(self, uid: str, name: str, value: int) -> None:
        """Set a live value. Raises Refused."""
        ...


def channel_to(target: Target) -> grpc.aio.Channel:
    """A connection, encrypted where the job's servers are."""
    return open_channel(target.address, authorities=target.authorities, name=target.server)


class ProgressPoller:
    """The Poller over gRPC; `run` must be running."""

    def __init__(
        self,
        on_news: Callable[[ObjectName], None],
        *,
        channels: Channels = channel_to,
        clock: Clock | None = None,
        every_s: float = _EVERY_S,
    ) -> None:
        self._on_news = on_news
        self._channels = channels
        self._clock = clock or SystemClock()
        self._every_s = every_s
        self._states: dict[str, _State] = {}
        self._asked: set[str] = set()
        self._schedule: Schedule[str] = Schedule()
        self._open: OrderedDict[str, tuple[Target, grpc.aio.Channel]] = OrderedDict()
        self._answering, self._dead = asyncio.Semaphore(_ANSWERING), asyncio.Semaphore(_DEAD)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self.calls = 0
        """Calls made so far."""

    def want(self, target: Target) -> None:
        """See Poller."""
        state = self._states.get(target.uid)
        if state is None:
            self._states[target.uid] = _State(target)
        elif state.target != target:
            state.target, state.failures = target, 0
        elif target.uid in self._asked:
            return
        self._asked.add(target.uid)
        self._schedule.add(target.uid, self._clock.monotonic())
        self._wanted.set()

    def drop(self, uid: str) -> None:
        """See Poller."""
        self._asked.discard(uid)
        state = self._states.get(uid)
        if state is not None and state.answers.unanswered_since is not None:
            state.answers = replace(state.answers, unanswered_since=None)

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all other jobs."""
        for uid in set(self._states) - set(uids):
            self._asked.discard(uid)
            del self._states[uid]

    def answers(self, uid: str) -> Answers:
        """See Poller."""
        state = self._states.get(uid)
        return state.answers if state is not None else Answers()

    async def set_live(self, uid: str, name: str, value: int) -> None:
        """See Poller."""
        state = self._states.get(uid)
        if state is None or uid not in self._asked:
            raise Refused("the scheduler has no address yet", temporary=True)
        request = scheduler_pb2.SetLiveRequest(header=_header(state), name=name, value=value)
        stub = SchedulerStub(self._channel(state.target))
        try:
            await stub.SetLive(request, timeout=_TIMEOUT_S, metadata=_credentials(state.target))
        except grpc.aio.AioRpcError as error:
            temporary = from_status(error.code(), error.details()) is None
            raise Refused(f"{error.code().name}: {error.details()}", temporary=temporary) from error

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._wanted.clear()
                self._start_due()
                due = self._schedule.next_due()
                wait_s = None if due is None else max(0.01, due - self._clock.monotonic())
                try:
                    await asyncio.wait_for(self._wanted.wait(), wait_s)
                except TimeoutError:
                    continue
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for _, channel in self._open.values():
                await channel.close()

    def _start_due(self) -> None:
        while (taken := self._schedule.take(self._clock.monotonic())) is not None:
            task = asyncio.create_task(self._ask(taken[0]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, uid: str) -> None:
        state = self._states.get(uid)
        try:
            if state is not None and uid in self._asked:
                async with self._dead if state.failures else self._answering:
                    await self._status(state)
        finally:
            self._schedule.done(uid)
            if state is not None and uid in self._asked:
                self._schedule.add(uid, self._clock.monotonic() + self._pause_s(state))
                self._wanted.set()

    def _pause_s(self, state: _State) -> float:
        fair_s = max(self._every_s, len(self._asked) / _CALLS_PER_S)
        if state.failures < 2:
            return fair_s
        return max(fair_s, min(_DEAD_LONGEST_S, _DEAD_FIRST_S * 2.0 ** min(state.failures - 2, 16)))

    async def _status(self, state: _State) -> None:
        target = state.target
        stub = SchedulerStub(self._channel(target))
        self.calls += 1
        try:
            reply = await stub.Status(
                scheduler_pb2.StatusRequest(header=_header(state)),
                timeout=_TIMEOUT_S,
                metadata=_credentials(target),
            )
        except grpc.aio.AioRpcError as error:
            self._silent(state, target, error)
            return
        if state.target == target and reply.header.incarnation >= state.answers.incarnation:
            self._heard(state, reply)

    def _heard(self, state: _State, reply: scheduler_pb2.StatusReply) -> None:
        before = state.answers
        progress = progress_of(reply, at=self._clock.wall())
        state.answers = Answers(progress, None, reply.header.incarnation)
        state.failures = 0
        if before.progress is None or _news(progress) != _news(before.progress) or before.unanswered_since is not None:
            self._on_news(state.target.job)

    def _silent(self, state: _State, target: Target, error: grpc.aio.AioRpcError) -> None:
        logger.debug("the scheduler of %s at %s: %s", target.job, target.address, error.code().name)
        self._reconnect(target.uid)
        if state.target != target or target.uid not in self._asked:
            return
        state.failures += 1
        if state.answers.unanswered_since is None:
            state.answers = replace(state.answers, unanswered_since=self._clock.wall())
            self._on_news(target.job)

    def _channel(self, target: Target) -> grpc.aio.Channel:
        """The open connection to a scheduler, or a new one; those not used for longest are closed."""
        known = self._open.pop(target.uid, None)
        if known is not None and known[0] == target:
            self._open[target.uid] = known
            return known[1]
        if known is not None:
            self._later(known[1])
        channel = self._channels(target)
        self._open[target.uid] = target, channel
        while len(self._open) > _OPEN_CHANNELS:
            _, (_, oldest) = self._open.popitem(last=False)
            self._later(oldest)
        return channel

    def _later(self, channel: grpc.aio.Channel) -> None:
        """Close without waiting. Calls under way get their time: one that is cut off ends its caller, a worker, too."""
        task = asyncio.create_task(channel.close(grace=2 * _TIMEOUT_S))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reconnect(self, uid: str) -> None:
        known = self._open.pop(uid, None)
        if known is not None:
            self._later(known[1])


def _news(progress: Progress) -> Progress:
    """Without what changes all the time and decides nothing."""
    quiet = tuple(replace(replica, silent_s=0.0, tokens_in_flight=0) for replica in progress.replicas)
    return replace(progress, at=0.0, replicas=quiet)


def _header(state: _State) -> common_pb2.CallHeader:
    return common_pb2.CallHeader(
        job_uid=state.target.uid, request_id=uuid.uuid4().hex, incarnation=state.answers.incarnation
    )


def _credentials(target: Target) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {target.token}"),)
