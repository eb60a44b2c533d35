"""A scheduler for the worker's tests: real gRPC, no policy. It leases what it is given, and writes down what it hears.

A sample that is handed back goes to the head of the queue with its partial, as a real scheduler would do it. Nothing
expires by itself: tests abort and forget on purpose.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
from drumroll_proto.v1 import common_pb2, journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server

from drumroll.rpc import SERVER_OPTIONS


@dataclass(frozen=True, slots=True)
class Work:
    """One sample to be made."""

    row: int
    index: int = 0
    attempt: int = 0
    partial: journal_pb2.PartialRef | None = None
    kind: int = common_pb2.LEASE_KIND_TRAIN
    exactly: int | None = None
    until: float = 0.0


@dataclass(slots=True)
class Lease:
    """A live lease."""

    work: Work
    replica: str
    grant: pb.LeaseGrant


@dataclass(slots=True)
class Heard:
    """What replicas said, in order."""

    reports: list[pb.SampleReport] = field(default_factory=list)
    hand_backs: list[pb.HandedBack] = field(default_factory=list)
    heartbeats: list[pb.HeartbeatRequest] = field(default_factory=list)
    pins: list[tuple[str, int, bool]] = field(default_factory=list)
    """(holder, version, whether it was an unpin)."""
    left: list[str] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)


class FakeScheduler(SchedulerServicer):
    """See the module. `async with FakeScheduler() as scheduler:` listens on `scheduler.address`."""

    def __init__(self, work: Iterable[Work] = ()) -> None:
        self.queue: deque[Work] = deque(work)
        self.leases: dict[str, Lease] = {}
        self.heard = Heard()
        self.newest = pb.AnnouncedWeights()
        self.aborted: set[str] = set()
        self.lose_lease_replies = 0
        """So many of the next lease replies carry nothing, though their leases are live."""
        self.unpinnable: set[int] = set()
        self.finished = False
        self.drain: set[str] = set()
        """Replicas that are told to drain."""
        self.banned: set[str] = set()
        """Replicas whose registration does not hold."""
        self.away = False
        """While it is set, every call fails as if nobody listened."""
        self.hold_reports = asyncio.Event()
        """Cleared: reports are taken, but their replies wait."""
        self.hold_reports.set()
        self.incarnation = 1
        self.changed = asyncio.Event()
        self._ids = itertools.count()
        self._known: set[str] = set()
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self.address = ""

    async def __aenter__(self) -> Self:
        add_SchedulerServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(0)

    # -- for tests -----------------------------------------------------------------------------------------------

    def announce(self, version: int, manifest_sha256: str, *, lineage: int = 0) -> None:
        """Make a version the newest."""
        self.newest = pb.AnnouncedWeights(
            present=True, version=version, manifest_sha256=manifest_sha256, lineage=lineage
        )

    def add(self, *work: Work) -> None:
        """Queue more samples."""
        self.queue.extend(work)
        self.changed.set()

    def abort(self, lease_id: str) -> None:
        """Take a lease back; the sample is queued again without tokens."""
        lease = self.leases.pop(lease_id)
        self.aborted.add(lease_id)
        self.queue.appendleft(lease.work)

    def finish(self) -> None:
        """The job has ended."""
        self.finished = True
        self.changed.set()

    def forget(self, replica: str) -> None:
        """Lose a registration, as a restarted scheduler without a journal would."""
        self._known.discard(replica)

    # -- service -------------------------------------------------------------------------------------------------

    async def _check_presence(self, context: Any) -> None:
        if self.away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")

    def _header(self) -> common_pb2.ReplyHeader:
        return common_pb2.ReplyHeader(incarnation=self.incarnation)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:  # noqa: N802
        await self._check_presence(context)
        self.heard.registered.append(request.replica.name)
        if request.replica.name not in self.banned:
            self._known.add(request.replica.name)
        return pb.RegisterReply(header=self._header(), protocol=1, heartbeat_s=0.05, newest=self.newest)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:  # noqa: N802
        await self._check_presence(context)
        self.heard.heartbeats.append(request)
        name = request.replica.name
        named = {lease.lease_id for lease in request.leases}
        missing = [lease.grant for key, lease in self.leases.items() if lease.replica == name and key not in named]
        return pb.HeartbeatReply(
            header=self._header(),
            missing=missing,
            abort=sorted(named & self.aborted),
            newest=self.newest,
            drain=name in self.drain,
            register_again=name not in self._known,
        )

    async def Lease(self, request: pb.LeaseRequest, context: Any) -> pb.LeaseReply:  # noqa: N802
        await self._check_presence(context)
        try:
            async with asyncio.timeout(request.wait_ms / 1000.0):
                while not self.queue and not self.finished:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return pb.LeaseReply(header=self._header())
        if self.finished:
            return pb.LeaseReply(header=self._header(), finished=True)
        grants = [self._grant(request.replica.name) for _ in range(min(request.free_slots, len(self.queue)))]
        if self.lose_lease_replies > 0:
            self.lose_lease_replies -= 1
            grants = []
        return pb.LeaseReply(header=self._header(), leases=grants)

    def _grant(self, replica: str) -> pb.LeaseGrant:
        work = self.queue.popleft()
        lease_id = f"{self.incarnation}-{next(self._ids)}"
        slot = pb.SampleSlot(index=work.index, attempt=work.attempt)
        if work.partial is not None:
            ref = work.partial
            slot.partial.CopyFrom(
                common_pb2.EntryRef(entry_id=ref.entry_id, sha256=ref.sha256, num_bytes=ref.num_bytes)
            )
        grant = pb.LeaseGrant(
            lease_id=lease_id,
            kind=work.kind,  # type: ignore[arg-type]  # tests lease kinds that do not exist, too
            task="default",
            ticket=common_pb2.TicketId(epoch=0, ordinal=work.row),
            row=work.row,
            samples=[slot],
            constraint=pb.VersionConstraint(
                exactly=work.exactly is not None, version=work.exactly or 0, until=work.until
            ),
        )
        self.leases[lease_id] = Lease(work, replica, grant)
        return grant

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:  # noqa: N802
        await self._check_presence(context)
        verdicts = []
        for sample in request.samples:
            accepted = self.leases.pop(sample.lease_id, None) is not None
            if accepted:
                self.heard.reports.append(sample)
            verdicts.append(pb.Verdict(lease_id=sample.lease_id, accepted=accepted, reason="" if accepted else "stale"))
        await self.hold_reports.wait()
        return pb.ReportReply(header=self._header(), verdicts=verdicts)

    async def HandBack(self, request: pb.HandBackRequest, context: Any) -> pb.HandBackReply:  # noqa: N802
        await self._check_presence(context)
        verdicts = []
        for sample in request.samples:
            lease = self.leases.pop(sample.lease_id, None)
            verdicts.append(pb.Verdict(lease_id=sample.lease_id, accepted=lease is not None))
            if lease is not None:
                self.heard.hand_backs.append(sample)
                self.queue.appendleft(_again(lease.work, sample))
        if request.leaving:
            self.heard.left.append(request.replica.name)
            self._known.discard(request.replica.name)
        self.changed.set()
        return pb.HandBackReply(header=self._header(), verdicts=verdicts)

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinReply:  # noqa: N802
        await self._check_presence(context)
        self.heard.pins.append((request.holder, request.version, request.unpin))
        return pb.PinReply(header=self._header(), pinned=request.version not in self.unpinnable)


def _again(work: Work, handed: pb.HandedBack) -> Work:
    partial = handed.partial if handed.HasField("partial") else work.partial
    charged = handed.reason != journal_pb2.RETURN_REASON_DRAINED
    return Work(work.row, work.index, work.attempt + charged, partial, work.kind, work.exactly, work.until)
