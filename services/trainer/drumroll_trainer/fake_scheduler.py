"""A scheduler that hands out decisions from a list, for tests and rehearsals of the trainer without a network.

It keeps what it was told, as the real one journals it. Hooks see each request before it is answered and may change
this scheduler, or raise; that of next-step may answer in its place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_proto.v1 import scheduler_pb2

from drumroll.errors import Fenced
from drumroll_trainer.decisions import from_wire, to_wire

_Outcome = scheduler_pb2.NextStepOutcome


@dataclass(slots=True)
class FakeScheduler:
    """Implements SchedulerPort. `plan`: the tickets of each step; the rest of a decision follows from the position."""

    plan: Sequence[tuple[r.DecidedTicket, ...]]
    max_policy_lag: int = 4
    snapshot_file: Path | None = None
    checkpoint_every: int = 10
    decided: list[r.Decided] = field(default_factory=list)
    announced: dict[int, r.Announced] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)
    trained: dict[int, dict[str, float]] = field(default_factory=dict)
    covered: list[tuple[int, int, str]] = field(default_factory=list)
    """Step, version, checkpoint."""
    registered: list[scheduler_pb2.RegisterRequest] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Step and number of samples."""
    release: list[int] = field(default_factory=list)
    """Given out with the next reply."""
    failure: str = ""
    checkpoint_now: bool = False
    on_next_step: Callable[[scheduler_pb2.NextStepRequest], scheduler_pb2.NextStepReply | None] | None = None
    on_commit: Callable[[scheduler_pb2.CommitRequest], None] | None = None
    on_announce: Callable[[scheduler_pb2.AnnounceRequest], None] | None = None
    epoch: int = 0
    lineage: int = 0
    first_version: int = 0
    """Version held before `first_step`."""
    first_step: int = 0
    _rewind: scheduler_pb2.NextStepReply | None = None

    async def register(
        self, request: scheduler_pb2.RegisterRequest, *, deadline_s: float = 0.0
    ) -> scheduler_pb2.RegisterReply:
        """A new trainer epoch."""
        self.epoch += 1
        self.registered.append(request)
        reply = scheduler_pb2.RegisterReply(protocol=1, trainer_epoch=self.epoch)
        if self.announced:
            newest = self.announced[max(self.announced)]
            reply.newest.present = True
            reply.newest.version = newest.version
            reply.newest.manifest_sha256 = newest.manifest_sha256
            reply.newest.lineage = newest.lineage
        return reply

    async def next_step(
        self, request: scheduler_pb2.NextStepRequest, *, deadline_s: float = 0.0
    ) -> scheduler_pb2.NextStepReply:
        """The decision of the step, made now unless it was made before."""
        self._check(request.trainer_epoch)
        if self.on_next_step is not None and (answer := self.on_next_step(request)) is not None:
            return answer
        if self.failure:
            return scheduler_pb2.NextStepReply(outcome=_Outcome.NEXT_STEP_OUTCOME_FAILED, reason=self.failure)
        if self._rewind is not None:
            return self._rewind
        step = request.step
        if step > len(self.decided):
            if not request.known:
                return scheduler_pb2.NextStepReply(outcome=_Outcome.NEXT_STEP_OUTCOME_SEND_KNOWN)
            known = [from_wire(message) for message in request.known]
            self.decided.extend(decision for decision in known if decision.step >= len(self.decided))
        if step == len(self.plan):
            return scheduler_pb2.NextStepReply(outcome=_Outcome.NEXT_STEP_OUTCOME_FINISHED)
        if step == len(self.decided):
            self.decided.append(self._decide(step))
        return scheduler_pb2.NextStepReply(
            outcome=_Outcome.NEXT_STEP_OUTCOME_DECIDED,
            decision=to_wire(self.decided[step]),
            checkpoint_now=self.checkpoint_now,
            release=self._released(),
        )

    async def commit(
        self, request: scheduler_pb2.CommitRequest, *, deadline_s: float = 0.0
    ) -> scheduler_pb2.CommitReply:
        """Keep what is told; lost samples lead to a rewind."""
        self._check(request.trainer_epoch)
        if self.on_commit is not None:
            self.on_commit(request)
        if request.lost:
            self.lost.append((request.step, len(request.lost)))
            self._turn_back()
        if request.has_step:
            self.trained[request.step] = dict(request.stats)
        if request.HasField("covered"):
            covered = request.covered
            self.covered.append((covered.step, covered.version, covered.checkpoint))
        following = request.step + 1
        due = self.checkpoint_now or following % self.checkpoint_every == 0 or following == len(self.plan)
        named = str(self.snapshot_file) if request.has_step and due and self.snapshot_file else ""
        return scheduler_pb2.CommitReply(ledger_snapshot=named, release=self._released())

    async def announce(
        self, request: scheduler_pb2.AnnounceRequest, *, deadline_s: float = 0.0
    ) -> scheduler_pb2.AnnounceReply:
        """A version is published; a known one changes nothing."""
        self._check(request.trainer_epoch)
        if self.on_announce is not None:
            self.on_announce(request)
        weights = request.weights
        announced = r.Announced(
            weights.version, weights.step, weights.lineage, weights.manifest_sha256, weights.weights_digest
        )
        self.announced.setdefault(weights.version, announced)
        if request.HasField("diverged"):
            self.diverged.append(request.diverged.version)
        if self._rewind is not None and weights.version == self._rewind.rewind.version:
            self._rewind = None
        return scheduler_pb2.AnnounceReply()

    def _check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise Fenced(f"trainer epoch {epoch} was replaced by {self.epoch}")

    def _released(self) -> list[int]:
        released, self.release = self.release, []
        return released

    def _decide(self, step: int) -> r.Decided:
        version = self.first_version + step - self.first_step
        decision = r.Decided(
            step=step,
            version=version,
            lineage=self.lineage,
            tickets=self.plan[step],
            mask_below=max(0, version - self.max_policy_lag),
            chain="",
        )
        previous = self.decided[-1].chain if self.decided else ""
        return replace(decision, chain=chain_digest(previous, decision))

    def _turn_back(self) -> None:
        """Rewind to the newest coverage, under the next unused version and a new lineage."""
        step = self.covered[-1][0] if self.covered else 0
        self.lineage += 1
        self.first_version = max(max(self.announced, default=0), self.first_version + len(self.decided)) + 1
        self.first_step = step
        del self.decided[step:]
        self._rewind = scheduler_pb2.NextStepReply(outcome=_Outcome.NEXT_STEP_OUTCOME_REWIND)
        self._rewind.rewind.step = step
        self._rewind.rewind.version = self.first_version
        self._rewind.rewind.lineage = self.lineage
        self._rewind.rewind.reason = "samples are lost"
