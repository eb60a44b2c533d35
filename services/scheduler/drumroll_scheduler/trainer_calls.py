"""What the trainer calls. Only the newest trainer epoch is served; an older trainer is fenced."""

from collections.abc import Sequence

from drumroll_planner import records as r
from drumroll_planner.policy import StepAnswer
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.errors import Fenced, ProtocolError
from drumroll_scheduler import translate
from drumroll_scheduler.archive import Archive
from drumroll_scheduler.core import Core
from drumroll_scheduler.rollout_calls import MAX_WAIT_S
from drumroll_scheduler.snapshot import CheckpointMark
from drumroll_scheduler.timeline import step_row


def check_epoch(given: int, newest: int) -> None:
    """Refuse a trainer that was replaced, or that never registered here.

    Raises:
        Fenced: a newer trainer has registered.
        ProtocolError: this epoch was never given.
    """
    if 0 < given < newest:
        raise Fenced(f"stale trainer epoch {given}: trainer epoch {newest} has taken over")
    if given != newest or not given:
        raise ProtocolError(f"trainer epoch {given} was never given (the newest is {newest}); register first")


class TrainerCalls:
    """See the module."""

    def __init__(self, core: Core, archive: Archive, *, heartbeat_s: float, checkpoint_every: int) -> None:
        self._core = core
        self._archive = archive
        self._heartbeat_s = heartbeat_s
        self._checkpoint_every = checkpoint_every

    async def register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        """A new trainer takes over."""
        core = self._core
        protocol = translate.agree_protocol(request)
        now = core.clock.monotonic()
        core.take(core.policy.register_trainer(now, request.step, request.chain, request.version, request.lineage))
        core.trainer_heard_at = now
        epoch = core.policy.trainer_epoch
        await core.durable()
        return pb.RegisterReply(
            protocol=protocol,
            trainer_epoch=epoch,
            heartbeat_s=self._heartbeat_s,
            lease_term_s=core.rules.lease_term_s,
            newest=translate.weights(core.story.newest),
        )

    async def next_step(self, request: pb.NextStepRequest) -> pb.NextStepReply:
        """The decision of a step, as soon as there is one."""
        core = self._core
        known = [translate.decided(message) for message in request.known]
        give_up_at = core.clock.monotonic() + min(MAX_WAIT_S, request.wait_ms / 1000.0)
        while True:
            check_epoch(request.trainer_epoch, core.policy.trainer_epoch)
            now = core.trainer_heard_at = core.clock.monotonic()
            answer = core.policy.next_step(request.step, request.chain, known)
            core.take(answer.records)
            if answer.outcome != "wait" or now >= give_up_at:
                return await self._step_reply(answer)
            await core.journal.changed(give_up_at - now)

    async def _step_reply(self, answer: StepAnswer) -> pb.NextStepReply:
        core = self._core
        reply = translate.step_answer(answer)
        reply.checkpoint_now = core.policy.checkpoint_wanted
        reply.release.extend(core.policy.releasable())
        if answer.outcome != "wait":
            await core.durable()
        return reply

    async def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        """Samples lost, a step trained, a checkpoint durable: in this order where a call says several."""
        core = self._core
        check_epoch(request.trainer_epoch, core.policy.trainer_epoch)
        core.trainer_heard_at = core.clock.monotonic()
        if request.lost:
            lost = [(translate.ticket(sample.ticket), sample.index) for sample in request.lost]
            core.take(core.policy.lost_samples(request.step, lost))
        mark = self._trained(request) if request.has_step else None
        if request.HasField("covered"):
            core.take(core.policy.covered(translate.covered(request.covered)))
        reply = pb.CommitReply(release=core.policy.releasable())
        if mark is not None:
            reply.ledger_snapshot = str(await self._archive.keep_for_checkpoint(mark))
        await core.durable()
        if request.HasField("covered"):
            await self._archive.forget_checkpoints(request.covered.step)
        return reply

    def _trained(self, request: pb.CommitRequest) -> CheckpointMark | None:
        """Take a trained step in; the checkpoint to be made after it, if one is due."""
        core = self._core
        records = core.policy.trained(request.step, request.version, request.chain, dict(request.stats))
        core.take(records)
        if any(isinstance(record, r.Trained) for record in records):
            core.timeline.add(step_row(request))
        following = request.step + 1
        last = core.policy.next_step(following, request.chain, ()).outcome == "finished"
        if not (last or core.policy.checkpoint_wanted or following % self._checkpoint_every == 0):
            return None
        return CheckpointMark(step=following, version=request.version, lineage=core.story.lineage)

    async def announce(self, request: pb.AnnounceRequest) -> pb.AnnounceReply:
        """A version is published."""
        core = self._core
        check_epoch(request.trainer_epoch, core.policy.trainer_epoch)
        core.trainer_heard_at = core.clock.monotonic()
        core.take(core.policy.announce(translate.announced(request.weights), translate.diverged(request)))
        await core.durable()
        return pb.AnnounceReply()

    async def pin(self, request: pb.PinRequest) -> pb.PinReply:
        """Keep a version, or no longer."""
        core = self._core
        if not request.holder:
            raise ProtocolError("holder is empty; a pin needs the name of its holder")
        pinned, records = True, self._unpin(request) if request.unpin else ()
        if not request.unpin:
            pinned, records = core.policy.pin(request.holder, request.version)
        core.take(records)
        await core.durable()
        return pb.PinReply(pinned=pinned)

    def _unpin(self, request: pb.PinRequest) -> Sequence[r.Record]:
        return self._core.policy.unpin(request.holder, request.version)
