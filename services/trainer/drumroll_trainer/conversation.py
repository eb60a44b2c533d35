"""The trainer's calls to the scheduler, as values in and values out.

Holds the trainer epoch, and the newest announcement: a scheduler that starts without its store's last words does not
know it, and a version that nobody announced is leased to nobody. So it is told again to each new incarnation.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence

from drumroll_planner import records as r
from drumroll_proto.v1 import common_pb2, journal_pb2, scheduler_pb2

from drumroll.errors import ProtocolError
from drumroll_trainer.decisions import sample_keys, to_wire
from drumroll_trainer.ports import SchedulerPort
from drumroll_trainer.publisher import Publication
from drumroll_trainer.start import Position

logger = logging.getLogger(__name__)

PROTOCOL = 1
_GOES_ON = (scheduler_pb2.NEXT_STEP_OUTCOME_DECIDED, scheduler_pb2.NEXT_STEP_OUTCOME_WAIT)
SCHEDULER_DEADLINE_S = 600.0
"""How long a call is tried while the scheduler is away."""


class Conversation:
    """Rank 0's side of the scheduler service. All calls may be repeated.

    Every method raises what `drumroll.rpc.SchedulerClient` raises; Fenced where a successor has registered.
    """

    def __init__(self, scheduler: SchedulerPort, *, deadline_s: float = SCHEDULER_DEADLINE_S) -> None:
        self._scheduler = scheduler
        self._deadline_s = deadline_s
        self._epoch = 0
        self._incarnation = 0
        """Of the scheduler that knows the newest announcement."""
        self._announced: Publication | None = None

    async def register(self, position: Position) -> scheduler_pb2.AnnouncedWeights:
        """Take over as the trainer; returns the newest announced weights."""
        request = scheduler_pb2.RegisterRequest(
            role=scheduler_pb2.ROLE_TRAINER,
            min_protocol=PROTOCOL,
            max_protocol=PROTOCOL,
            step=position.step,
            chain=position.chain,
            version=position.version,
            lineage=position.lineage,
            instance=uuid.uuid4().hex,
        )
        reply = await self._scheduler.register(request, deadline_s=self._deadline_s)
        if reply.protocol != PROTOCOL:
            raise ProtocolError(f"the scheduler chose protocol {reply.protocol}, this trainer speaks {PROTOCOL}")
        self._epoch, self._incarnation = reply.trainer_epoch, reply.header.incarnation
        logger.info("registered at step %d, version %d, epoch %d", position.step, position.version, self._epoch)
        return reply.newest

    async def next_step(
        self, position: Position, known: Sequence[r.Decided], *, wait_ms: int
    ) -> scheduler_pb2.NextStepReply:
        """Ask for the decision of `position.step`; `known`: decisions that the ledger lost."""
        request = scheduler_pb2.NextStepRequest(
            trainer_epoch=self._epoch,
            step=position.step,
            chain=position.chain,
            wait_ms=wait_ms,
            known=[to_wire(decision) for decision in known],
        )
        reply = await self._scheduler.next_step(request, deadline_s=self._deadline_s)
        if reply.outcome in _GOES_ON and reply.header.incarnation != self._incarnation:
            if self._announced is not None:
                await self.announce(self._announced)
            self._incarnation = reply.header.incarnation
        return reply

    async def trained(
        self, decision: r.Decided, stats: Mapping[str, float], *, started_at: float, finished_at: float
    ) -> scheduler_pb2.CommitReply:
        """The step is trained. The reply names a ledger snapshot where a checkpoint is due."""
        return await self._commit(
            scheduler_pb2.CommitRequest(
                step=decision.step,
                version=decision.version + 1,
                chain=decision.chain,
                stats=stats,
                has_step=True,
                started_at=started_at,
                finished_at=finished_at,
            )
        )

    async def lost(self, decision: r.Decided, places: Sequence[int], position: Position) -> scheduler_pb2.CommitReply:
        """Samples of the decided step are gone or damaged."""
        keys = sample_keys(decision)
        return await self._commit(
            scheduler_pb2.CommitRequest(
                step=decision.step,
                version=position.version,
                chain=position.chain,
                lost=[_sample_id(*keys[place]) for place in places],
            )
        )

    async def covered(self, position: Position, checkpoint: str) -> scheduler_pb2.CommitReply:
        """A durable checkpoint, named `checkpoint`, holds all steps before `position`."""
        coverage = journal_pb2.Covered(
            step=position.step, version=position.version, lineage=position.lineage, checkpoint=checkpoint
        )
        return await self._commit(scheduler_pb2.CommitRequest(covered=coverage))

    async def announce(self, publication: Publication) -> None:
        """A version is published."""
        weights, diverged = publication.announced, publication.diverged
        self._announced = Publication(weights)
        request = scheduler_pb2.AnnounceRequest(
            trainer_epoch=self._epoch,
            weights=journal_pb2.Announced(
                version=weights.version,
                step=weights.step,
                lineage=weights.lineage,
                manifest_sha256=weights.manifest_sha256,
                weights_digest=weights.weights_digest,
            ),
        )
        if diverged is not None:
            request.diverged.version = diverged.version
            request.diverged.expected = diverged.expected
            request.diverged.actual = diverged.actual
        await self._scheduler.announce(request, deadline_s=self._deadline_s)

    async def _commit(self, request: scheduler_pb2.CommitRequest) -> scheduler_pb2.CommitReply:
        request.trainer_epoch = self._epoch
        return await self._scheduler.commit(request, deadline_s=self._deadline_s)


def _sample_id(ticket: r.TicketId, sample: r.DecidedSample) -> common_pb2.SampleId:
    return common_pb2.SampleId(
        ticket=common_pb2.TicketId(epoch=ticket.epoch, ordinal=ticket.ordinal),
        index=sample.index,
        attempt=sample.attempt,
    )
