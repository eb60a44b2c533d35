"""A replica that speaks the real protocol and makes answers by a script: for tests and benches of the scheduler.

It registers, attests whatever is announced, leases, writes real entries to the stream, reports, and stops when the job
has ended.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.entries import EntryRef
from drumroll.rpc import PROTOCOL_VERSION, SchedulerClient
from drumroll.samples import (
    EntryKind,
    FinishReason,
    SampleId,
    SamplePayload,
    Sampling,
    encode,
    make_sequence,
    segments_from_versions,
)
from drumroll.store import retrying
from drumroll.stream import SampleStream


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer."""

    num_tokens: int = 4
    reward: float = 0.0
    seconds: float = 0.0
    """Time that it takes, with progress in every heartbeat."""


Script = Callable[[pb.LeaseGrant], Answer | None]
"""What a lease is answered with; None: never."""


def varied(grant: pb.LeaseGrant) -> Answer:
    """Rewards that differ within each group."""
    return Answer(num_tokens=3 + grant.samples[0].index, reward=float(grant.samples[0].index % 2))


class ScriptedReplica:
    """See the module. `run` ends with the job; cancel it to kill the replica."""

    def __init__(
        self,
        client: SchedulerClient,
        stream: SampleStream,
        *,
        name: str = "rollout-0",
        slots: int = 8,
        script: Script = varied,
        wait_ms: int = 500,
    ) -> None:
        self.replica = common_pb2.ReplicaId(name=name, instance=uuid.uuid4().hex)
        self.held: dict[str, int] = {}
        """Lease id to tokens done."""
        self.attested: int | None = None
        self.reported = 0
        self.refused: list[pb.Verdict] = []
        self._client = client
        self._stream = stream
        self._slots = slots
        self._script = script
        self._wait_ms = wait_ms
        self._heartbeat_s = 1.0
        self._evaluating: set[str] = set()
        """Leases for which the attested version stays."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._failed: BaseException | None = None

    async def run(self) -> None:
        """Work until the scheduler says that the job has ended."""
        await self.register()
        heart = asyncio.create_task(self._beat())
        try:
            await self._lease_until_finished()
        finally:
            for task in [heart, *self._tasks.values()]:
                task.cancel()
            await asyncio.gather(heart, *self._tasks.values(), return_exceptions=True)

    async def register(self) -> None:
        """Register this instance."""
        request = pb.RegisterRequest(
            role=pb.ROLE_ROLLOUT,
            min_protocol=PROTOCOL_VERSION,
            max_protocol=PROTOCOL_VERSION,
            replica=self.replica,
            slots=self._slots,
        )
        reply = await self._client.register(request)
        self._heartbeat_s = reply.heartbeat_s
        await self.beat()

    async def beat(self) -> None:
        """One heartbeat; takes up what is missing, drops what is to be aborted, attests the newest version."""
        request = pb.HeartbeatRequest(
            replica=self.replica,
            leases=[pb.LeaseProgress(lease_id=key, tokens_done=done) for key, done in self.held.items()],
            attested=self.attested is not None,
            attested_version=self.attested or 0,
        )
        reply = await self._client.heartbeat(request)
        if reply.register_again:
            self.attested = None
            await self.register()
            return
        for lease_id in reply.abort:
            self.held.pop(lease_id, None)
            if lease_id in self._tasks:
                self._tasks.pop(lease_id).cancel()
        for grant in reply.missing:
            self._take(grant)
        if reply.newest.present and reply.newest.version != self.attested and not self._evaluating:
            await self.load(reply.newest.version)
            self.attested = reply.newest.version
            await self.beat()

    async def load(self, version: int) -> None:
        """Load a version before it is attested; here it takes no time."""

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self.beat()

    async def _lease_until_finished(self) -> None:
        while True:
            if self._failed is not None:
                raise self._failed
            free = self._slots - len(self.held)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            request = pb.LeaseRequest(replica=self.replica, free_slots=free, wait_ms=self._wait_ms)
            reply = await self._client.lease(request)
            if reply.finished:
                return
            if reply.register_again:
                await self.register()
            elif reply.update_first:
                await self.beat()
            for grant in reply.leases:
                self._take(grant)

    def _take(self, grant: pb.LeaseGrant) -> None:
        if grant.lease_id in self.held:
            return
        self.held[grant.lease_id] = 0
        if grant.constraint.exactly:
            self._evaluating.add(grant.lease_id)
        task = asyncio.create_task(self._answer(grant))
        self._tasks[grant.lease_id] = task
        task.add_done_callback(lambda done: self._ended(grant.lease_id, done))

    def _ended(self, lease_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(lease_id, None)
        self.held.pop(lease_id, None)
        self._evaluating.discard(lease_id)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            self._failed = task.exception()

    async def _answer(self, grant: pb.LeaseGrant) -> None:
        answer = self._script(grant)
        if answer is None:
            await asyncio.Event().wait()
            return
        started = time.time()
        await self.generate(grant, answer)
        slot = grant.samples[0]
        sample = SampleId(grant.ticket.epoch, grant.ticket.ordinal, slot.index, slot.attempt)
        payload = self.payload(grant, answer, started=started)
        ref = await retrying(
            lambda: self._stream.add(sample=sample, lease_id=grant.lease_id, kind=EntryKind.SAMPLE, payload=payload),
            deadline_s=60.0,
        )
        await self._report(grant, answer, ref, started)

    async def generate(self, grant: pb.LeaseGrant, answer: Answer) -> None:
        """Take the answer's time, with progress."""
        for token in range(answer.num_tokens):
            await asyncio.sleep(answer.seconds / answer.num_tokens)
            self.held[grant.lease_id] = token + 1

    def payload(self, grant: pb.LeaseGrant, answer: Answer, *, started: float) -> bytes:
        """The entry's payload."""
        sequence = make_sequence(
            prompt_ids=[1],
            completion_ids=[2] * answer.num_tokens,
            logprobs=[-1.0] * answer.num_tokens,
            segments=segments_from_versions(
                [grant.version] * answer.num_tokens, replica=self.replica.name, instance=self.replica.instance
            ),
            finish_reason=FinishReason.STOP,
            reward=answer.reward,
        )
        payload = SamplePayload(
            sequences=(sequence,),
            sampling=Sampling(temperature=1.0),
            row=grant.row,
            actual_tokens=answer.num_tokens,
            started_at=started,
            finished_at=time.time(),
        )
        return encode(payload)

    async def _report(self, grant: pb.LeaseGrant, answer: Answer, ref: EntryRef, started: float) -> None:
        slot = grant.samples[0]
        report = pb.SampleReport(
            lease_id=grant.lease_id,
            sample=common_pb2.SampleId(ticket=grant.ticket, index=slot.index, attempt=slot.attempt),
            entry=ref.to_proto(),
            oldest_version=grant.version,
            newest_version=grant.version,
            num_tokens=answer.num_tokens,
            reward=answer.reward,
            finished=True,
            started_at=started,
            finished_at=time.time(),
        )
        reply = await self._client.report(pb.ReportRequest(replica=self.replica, samples=[report]))
        self.reported += sum(verdict.accepted for verdict in reply.verdicts)
        self.refused += [verdict for verdict in reply.verdicts if not verdict.accepted]
