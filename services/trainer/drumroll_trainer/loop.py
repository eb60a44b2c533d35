"""What rank 0 does: ask for a step, read its samples, train, publish, commit, checkpoint, and again.

                    +--------------------------- WAIT
                    v                             |
    start -> next step? -- DECIDED -> read -> archive -> train -> publish, announce -> commit [-> checkpoint -> cover]
                    |                   |
                    |                   +-- samples gone -> told as lost -> REWIND -> newest checkpoint, new version
                    +-- FINISHED -> publish, checkpoint, end          +-- FAILED -> JobFailed

A restarted trainer goes back to its newest checkpoint and takes the same steps again: first those in the archive,
whose decisions the ledger may have lost with its host, then what the scheduler says. Telling twice changes nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_proto.v1 import journal_pb2, scheduler_pb2

from drumroll.clock import Clock, SystemClock
from drumroll.data import DatasetInfo
from drumroll.errors import JobFailed, ProtocolError
from drumroll.job import ResolvedJob
from drumroll.samples import Limits
from drumroll_trainer.archive import decisions_before, decisions_from, forget_from, write_step
from drumroll_trainer.checkpoints import CheckpointStore, TrainerState
from drumroll_trainer.conversation import Conversation
from drumroll_trainer.decisions import from_wire
from drumroll_trainer.decoding import decode_step, place_name
from drumroll_trainer.ports import LearnerPort, SampleSource, SchedulerPort
from drumroll_trainer.publisher import Publisher
from drumroll_trainer.start import Position, Start, choose_start, dataset_facts
from drumroll_trainer.stopping import Stop
from drumroll_trainer.timings import Timings

logger = logging.getLogger(__name__)

POLL_MS = 10_000
"""Longest wait of one next-step call; the other ranks hear of rank 0 at least this often."""

_Outcome = scheduler_pb2.NextStepOutcome


@dataclass(frozen=True, slots=True)
class Parts:
    """What a trainer is put together from."""

    job: ResolvedJob
    scheduler: SchedulerPort
    source: SampleSource
    learner: LearnerPort
    publisher: Publisher
    dataset: DatasetInfo
    clock: Clock = field(default_factory=SystemClock)
    stop: Stop = field(default_factory=Stop)
    poll_ms: int = POLL_MS
    accept_data_change: bool = False
    """Go on although the data set is not the one that the checkpoint was trained on."""


@dataclass(frozen=True, slots=True)
class _Committed:
    """The newest step, as it was told."""

    decision: r.Decided
    stats: dict[str, float]
    started_at: float
    finished_at: float


class Trainer:
    """One trainer process's life. `run` returns when the job is done."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._job = parts.job
        self._samples_dir = parts.job.layout.samples_dir
        self._scheduler = Conversation(parts.scheduler)
        self._checkpoints = CheckpointStore(parts.job.layout.checkpoints_dir)
        self._timings = Timings(parts.clock)
        self._position: Position
        self._covered_step = 0
        self._published: int | None = None
        self._archived: dict[int, r.Decided] = {}
        """Decisions of a dead predecessor that are to be taken again."""
        self._committed: _Committed | None = None
        self._checkpoint_wanted = False

    @property
    def position(self) -> Position:
        """Between which steps the trainer is."""
        return self._position

    async def run(self) -> None:
        """Train until the scheduler says that all is done.

        Raises:
            Fenced: a successor has registered.
            SchedulerUnavailable, StoreUnavailable: away for longer than the deadline.
            JobFailed: the job cannot go on.
        """
        await self._start()
        known: Sequence[r.Decided] = ()
        while True:
            while self._position.step in self._archived:
                await self._take(self._archived.pop(self._position.step))
            reply = await self._next_step(known)
            known = ()
            match reply.outcome:
                case _Outcome.NEXT_STEP_OUTCOME_WAIT:
                    await self._rest()
                case _Outcome.NEXT_STEP_OUTCOME_DECIDED:
                    await self._take(from_wire(reply.decision))
                case _Outcome.NEXT_STEP_OUTCOME_SEND_KNOWN:
                    known = decisions_before(self._samples_dir, self._position.step)
                case _Outcome.NEXT_STEP_OUTCOME_REWIND:
                    await self._rewind(reply.rewind)
                case _Outcome.NEXT_STEP_OUTCOME_FINISHED:
                    return await self._finish()
                case _Outcome.NEXT_STEP_OUTCOME_FAILED:
                    raise JobFailed(reply.reason)
                case unknown:
                    raise ProtocolError(f"next step: outcome {unknown} is not known here")

    # -- start, rewind, end --------------------------------------------------------------------------------------

    async def _start(self) -> None:
        start = choose_start(
            self._job, self._checkpoints, self._parts.dataset, accept_data_change=self._parts.accept_data_change
        )
        self._parts.learner.restore(start.folder)
        self._position = position = start.position
        self._archived = decisions_from(self._samples_dir, position.step, position.chain)
        newest = await self._scheduler.register(position)
        self._parts.publisher.sweep()
        if start.covered and start.folder is not None:
            # The predecessor may have died between the checkpoint and its coverage.
            await self._cover(start.folder.name)
        await self._publish_at_start(start, newest)
        if start.folder is not None and not start.covered:
            # The other job may go on and replace what this one started from.
            await self._checkpoint(None)
        self._timings.begin_step()

    async def _publish_at_start(self, start: Start, newest: scheduler_pb2.AnnouncedWeights) -> None:
        version = start.position.version
        if newest.present and newest.version > version and not self._parts.publisher.has(version):
            self._published = newest.version  # this one was released
        elif self._due() or not newest.present:
            await self._publish()

    async def _rewind(self, rewound: journal_pb2.Rewound) -> None:
        # Not simply the newest: one that the ledger never heard of is of the abandoned history.
        step, checkpoint = rewound.step, self._checkpoints.at(rewound.step)
        logger.warning("rewinding from step %d to %d: %s", self._position.step, step, rewound.reason)
        if checkpoint is None and step > 0:
            raise ProtocolError(f"the scheduler rewinds to step {step}, of which there is no complete checkpoint")
        forget_from(self._samples_dir, step)
        self._archived.clear()
        self._committed = None
        self._parts.learner.restore(checkpoint.path if checkpoint else None)
        chain = checkpoint.state.chain if checkpoint else ""
        self._position = Position(step, rewound.version, rewound.lineage, chain)
        self._covered_step = step
        await self._publish()

    async def _finish(self) -> None:
        if self._published is None or self._published < self._position.version:
            await self._publish()
        if self._covered_step < self._position.step:
            await self._checkpoint(await self._ledger_snapshot())
        logger.info("all %d steps are trained", self._position.step)

    # -- one step ------------------------------------------------------------------------------------------------

    async def _next_step(self, known: Sequence[r.Decided]) -> scheduler_pb2.NextStepReply:
        with self._timings.measure("wait"):
            wait_ms = 0 if known else self._parts.poll_ms  # once adopted, the next reply is worth having
            reply = await self._scheduler.next_step(self._position, known, wait_ms=wait_ms)
        self._checkpoint_wanted = reply.checkpoint_now
        self._parts.publisher.release(reply.release)
        return reply

    async def _rest(self) -> None:
        self._parts.learner.idle()
        wanted = self._checkpoint_wanted and self._covered_step < self._position.step
        if wanted and (snapshot := await self._ledger_snapshot()) is not None:
            await self._checkpoint(snapshot)

    async def _take(self, decision: r.Decided) -> None:
        self._check_next(decision)
        started_at = self._parts.clock.wall()
        with self._timings.measure("read"):
            payloads = await self._read(decision)
        if payloads is None:
            return
        write_step(self._samples_dir, decision, payloads if self._job.spec.stream.archive_samples else None)
        with self._timings.measure("train"):
            stats = self._parts.learner.train(decision, payloads)
        with self._parts.stop.shield():
            self._position = Position(decision.step + 1, decision.version + 1, decision.lineage, decision.chain)
            if self._due():
                await self._publish()
            stats |= self._timings.end_step(
                num_tokens=stats.get("tokens/total", 0.0), num_processes=self._parts.learner.world_size
            )
            snapshot = await self._commit(_Committed(decision, stats, started_at, self._parts.clock.wall()))
        logger.info("step %d trained: reward %.3f", decision.step, stats["reward/mean"])
        every = self._job.spec.trainer.checkpoint.every_steps
        if snapshot or self._position.step % every == 0:
            await self._checkpoint(snapshot)

    def _check_next(self, decision: r.Decided) -> None:
        position = self._position
        if decision.step != position.step or chain_digest(position.chain, decision) != decision.chain:
            raise ProtocolError(f"the decision of step {decision.step} does not continue this trainer's chain")
        if (decision.version, decision.lineage) != (position.version, position.lineage):
            raise ProtocolError(
                f"step {decision.step} is decided for version {decision.version} of lineage {decision.lineage}, "
                f"this trainer holds {position.version} of {position.lineage}"
            )

    async def _read(self, decision: r.Decided) -> list[bytes] | None:
        """The payloads; None after what is lost has been told."""
        found = await self._parts.source.read(decision)
        lost = [place for place, payload in enumerate(found) if payload is None]
        payloads = [payload for payload in found if payload is not None]
        if not lost:
            limits = Limits.of(self._job, vocab_size=self._parts.learner.vocab_size)
            for place, reason in decode_step(decision, payloads, limits).faults:
                logger.error("step %d: sample %s is refused: %s", decision.step, place_name(decision, place), reason)
                lost.append(place)
        if not lost:
            return payloads
        logger.error("step %d: %d of %d samples are gone or damaged", decision.step, len(lost), len(found))
        # An archived decision may be void by now; the scheduler says how to go on.
        self._archived.clear()
        await self._scheduler.lost(decision, lost, self._position)
        return None

    async def _commit(self, committed: _Committed) -> Path | None:
        """Tell the newest step, for the first time or again; returns the ledger snapshot for a checkpoint, if any."""
        self._committed = committed
        reply = await self._scheduler.trained(
            committed.decision,
            committed.stats,
            started_at=committed.started_at,
            finished_at=committed.finished_at,
        )
        self._parts.publisher.release(reply.release)
        return Path(reply.ledger_snapshot) if reply.ledger_snapshot else None

    # -- publish, checkpoint -------------------------------------------------------------------------------------

    def _due(self) -> bool:
        """Whether the version held is one of those that are published."""
        return self._position.step % self._job.spec.weights.publish_every_steps == 0

    async def _publish(self) -> None:
        position = self._position
        with self._timings.measure("publish"):
            publication = self._parts.publisher.publish(
                version=position.version, step=position.step, lineage=position.lineage
            )
            await self._scheduler.announce(publication)
        self._published = position.version

    async def _ledger_snapshot(self) -> Path | None:
        """Ask again for what the newest step's commit may not have given: a checkpoint was not due then."""
        return await self._commit(self._committed) if self._committed is not None else None

    async def _checkpoint(self, snapshot: Path | None) -> None:
        with self._timings.measure("checkpoint"):
            staging = self._checkpoints.stage(self._position.step)
            self._parts.learner.save(staging)
            with self._parts.stop.shield():
                keep = self._job.spec.trainer.checkpoint.keep
                finished = self._checkpoints.finish(staging, self._state(), ledger_snapshot=snapshot, keep=keep)
                await self._cover(finished.path.name)

    async def _cover(self, name: str) -> None:
        self._covered_step = self._position.step
        self._checkpoint_wanted = False
        if self._position.step == 0:
            return  # what another job's checkpoint became here covers no step
        reply = await self._scheduler.covered(self._position, name)
        self._parts.publisher.release(reply.release)

    def _state(self) -> TrainerState:
        position = self._position
        return TrainerState(
            job_uid=self._job.uid,
            step=position.step,
            version=position.version,
            lineage=position.lineage,
            chain=position.chain,
            dataset=dataset_facts(self._parts.dataset),
            learning_rate=self._committed.stats.get("actor/lr", 0.0) if self._committed else 0.0,
            world_size=self._parts.learner.world_size,
            rng_state=self._parts.learner.rng_state(),
        )
