"""The rollout worker: brings its parts together, and takes them apart in the right order.

How it ends:
    finished   the scheduler says that the job has ended: drop what is left
    drained    SIGTERM, or the scheduler asks: finish what the grace allows, hand over the rest token by token
    failed     refused weights, a dead engine, a broken reward contract: hand everything back at once, then raise
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumroll_planner.records import LeaseKind
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.api.spec import RLJobSpec
from drumroll.clock import Clock
from drumroll.errors import Fenced
from drumroll.samples import Limits
from drumroll_rollout.batches import Batches
from drumroll_rollout.collaborators import (
    Prompts,
    PublishedVersions,
    SampleStore,
    SchedulerCalls,
    Scorer,
    TextDecoder,
)
from drumroll_rollout.counters import Counters
from drumroll_rollout.engine import Engine
from drumroll_rollout.episode import Stage, StageName, Stages
from drumroll_rollout.held import Assignment, HeldSample, HeldSamples
from drumroll_rollout.leaving import Departure, Grace, cancel
from drumroll_rollout.patient_store import PatientStore
from drumroll_rollout.payloads import PayloadMaker
from drumroll_rollout.production import HandBacks, Production, Reports, Workbench
from drumroll_rollout.session import Reactions, Session
from drumroll_rollout.weights_loop import WeightsLoop

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a worker is made of; the engine and the scorer are started."""

    spec: RLJobSpec
    replica: common_pb2.ReplicaId
    engine: Engine
    scheduler: SchedulerCalls
    store: SampleStore
    versions: PublishedVersions
    prompts: Mapping[LeaseKind, Prompts]
    eos_token_ids: Sequence[int]
    tokenizer_digest: str
    limits: Limits
    scorer: Scorer
    decode_text: TextDecoder
    clock: Clock


class Worker:
    """One replica, from registration to its last call."""

    def __init__(self, parts: Parts, *, asked: asyncio.Event | None = None, counters: Counters | None = None) -> None:
        """`asked`: set when the replica is to drain, before or while it runs."""
        self._parts = parts
        self._held = HeldSamples()
        self.counters = counters or Counters()
        self._reports: Reports = Batches(self._send_reports)
        self._hand_backs: HandBacks = Batches(self._send_hand_backs)
        self._weights = WeightsLoop(
            engine=parts.engine,
            versions=parts.versions,
            scheduler=parts.scheduler,
            holder=parts.replica.name,
            held_until=self._held.version_held_until,
            on_attested=lambda: self._session.beat_soon(),
            clock=parts.clock,
        )
        self._session = Session(
            parts.scheduler,
            replica=parts.replica,
            slots=parts.spec.rollout.max_concurrent_samples,
            heartbeat_s=parts.spec.scheduler.heartbeat_seconds,
            held=self._held,
            weights=self._weights,
            reactions=Reactions(start=self._start, stop=self._stop, drain=self.drain, gauges=self._gauges),
        )
        self._production = Production(self._workbench())
        self._departure = Departure(
            replica=parts.replica,
            engine=parts.engine,
            scheduler=parts.scheduler,
            held=self._held,
            session=self._session,
            production=self._production,
            counters=self.counters,
            clock=parts.clock,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._drain_asked = asked or asyncio.Event()
        self._failure: asyncio.Future[None] | None = None

    def _workbench(self) -> Workbench:
        parts, spec = self._parts, self._parts.spec
        slots, reward = spec.rollout.max_concurrent_samples, spec.reward
        return Workbench(
            spec=spec,
            engine=parts.engine,
            prompts=parts.prompts,
            eos_token_ids=parts.eos_token_ids,
            scorer=parts.scorer,
            decode_text=parts.decode_text,
            stages=Stages(
                acquire=Stage(StageName.ACQUIRE, concurrency=slots),
                run=Stage(StageName.RUN, concurrency=slots),
                # The scorer kills what takes too long; this is for a scorer that does not answer at all.
                evaluate=Stage(
                    StageName.EVALUATE, concurrency=reward.workers, deadline_s=2.0 * reward.timeout_seconds + 60.0
                ),
            ),
            payloads=PayloadMaker(
                replica=parts.replica.name,
                instance=parts.replica.instance,
                tokenizer_digest=parts.tokenizer_digest,
                max_response_tokens=spec.data.max_response_tokens,
                lineage=self._weights.lineage,
                limits=parts.limits,
            ),
            store=PatientStore(parts.store, limits=parts.limits, counters=self.counters),
            weights=self._weights,
            reports=self._reports,
            hand_backs=self._hand_backs,
            counters=self.counters,
            clock=parts.clock,
            on_stage=self._session.poke,
        )

    def drain(self) -> None:
        """Leave in good order; for signal handlers and for the scheduler's word."""
        self._drain_asked.set()

    def why_not_ready(self) -> str | None:
        """Why this replica generates nothing that may be trained on; None: it does."""
        if self._session.draining or self._drain_asked.is_set():
            return "it drains"
        behind = self._weights.behind
        if behind is None:
            return "it has no weights yet"
        bound = self._parts.spec.max_policy_lag
        return f"its weights are {behind} versions behind, {bound} are allowed" if behind > bound else None

    async def run(self) -> None:
        """Work until the job ends, a drain is over, or something fails.

        Raises:
            WeightsRefused, EngineDead, RewardError: after everything was handed back.
            Fenced, ProtocolError, UserError, JobFailed: as the scheduler or the store said.
        """
        self._failure = asyncio.get_running_loop().create_future()
        loops: list[asyncio.Task[None]] = []
        try:
            if await self._started():
                loops = [
                    asyncio.create_task(loop, name=name)
                    for name, loop in (
                        ("leases", self._session.leases()),
                        ("heartbeats", self._session.heartbeats()),
                        ("weights", self._weights.run()),
                        ("reports", self._reports.run()),
                        ("hand-backs", self._hand_backs.run()),
                    )
                ]
                await self._serve(loops)
        finally:
            await cancel([*loops, *self._tasks])
            self._failure.cancel()

    async def _started(self) -> bool:
        """The replica is registered; False if a drain was asked for before that."""
        starting = asyncio.create_task(self._session.register())
        asked = asyncio.create_task(self._drain_asked.wait())
        await asyncio.wait([starting, asked], return_when=asyncio.FIRST_COMPLETED)
        await cancel([asked])
        if starting.done():
            starting.result()
            return True
        await cancel([starting])
        return False

    async def _serve(self, loops: list[asyncio.Task[None]]) -> None:
        assert self._failure is not None
        leases = loops[0]
        asked = asyncio.create_task(self._drain_asked.wait())
        watched: list[asyncio.Future[Any]] = [*loops, asked, self._failure]
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        await cancel([asked])
        error = self._error(loops)
        if error is None and leases.done():
            logger.info("the job has ended; %d samples are dropped", len(self._held))
            for held in self._held:
                self._drop(held)
            return
        await cancel([leases])
        if error is None:
            error = await self._drained(loops)
        if error is not None:
            if not isinstance(error, Fenced):
                logger.error("leaving: %s", error)
                await self._departure.leave(
                    Grace.of(self._parts.spec.rollout.grace_seconds).at_once(), detail=str(error)
                )
            raise error

    async def _drained(self, loops: list[asyncio.Task[None]]) -> BaseException | None:
        """Drain; what failed meanwhile, if anything did."""
        assert self._failure is not None
        grace = Grace.of(self._parts.spec.rollout.grace_seconds)
        logger.info("draining: %d samples, %.1f s to finish them", len(self._held), grace.finish_s)
        leaving = asyncio.create_task(self._departure.leave(grace, detail="the replica drains"))
        watched: list[asyncio.Future[None]] = [leaving, self._failure, *loops[1:]]
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        error = self._error(loops)
        if error is None:
            await leaving
        else:
            await cancel([leaving])
        return error

    def _error(self, loops: list[asyncio.Task[None]]) -> BaseException | None:
        """What went wrong first, as far as one can tell."""
        assert self._failure is not None
        ended: list[asyncio.Future[None]] = [self._failure, *loops]
        done = (future for future in ended if future.done() and not future.cancelled())
        return next((error for future in done if (error := future.exception()) is not None), None)

    # -- samples -------------------------------------------------------------------------------------------------

    def _start(self, assignment: Assignment) -> None:
        held = HeldSample(assignment, stage_since=self._parts.clock.monotonic())
        if self._session.draining:
            held.interrupted.set()
        self._held.add(held)
        held.task = asyncio.create_task(self._production.produce(held), name=assignment.request_id)
        self._tasks.add(held.task)
        held.task.add_done_callback(lambda task: self._ended(held, task))

    def _ended(self, held: HeldSample, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if held.settled:
            self._held.remove(held)
        self._session.poke()
        if task.cancelled() or self._failure is None:
            return
        error = task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _stop(self, lease_id: str) -> None:
        """The scheduler does not want these samples any more.

        A report may have crossed the heartbeat that said so: then the lease is over because the sample was accepted.
        """
        for held in self._held.of_lease(lease_id):
            if not held.settling:
                logger.info("%s: stopped with %d tokens", held.assignment, len(held.transcript))
                self._drop(held)
        self._session.poke()

    def _drop(self, held: HeldSample) -> None:
        held.settled = True
        self.counters.tokens_unwanted += len(held.transcript)
        self._held.remove(held)
        if held.task is not None:
            held.task.cancel()

    def _gauges(self) -> dict[str, float]:
        stats = self._parts.engine.stats()
        return {
            "running": float(stats.running),
            "waiting": float(stats.waiting),
            "kv_usage": stats.kv_usage,
            "tokens_total": float(stats.tokens_total),
            **self.counters.gauges(),
        }

    # -- calls ---------------------------------------------------------------------------------------------------

    async def _send_reports(self, reports: Sequence[pb.SampleReport]) -> list[pb.Verdict]:
        request = pb.ReportRequest(replica=self._parts.replica, samples=reports)
        reply = await self._parts.scheduler.report(request)
        return _in_order([report.lease_id for report in reports], reply.verdicts)

    async def _send_hand_backs(self, samples: Sequence[pb.HandedBack]) -> list[pb.Verdict]:
        request = pb.HandBackRequest(replica=self._parts.replica, samples=samples)
        reply = await self._parts.scheduler.hand_back(request)
        return _in_order([sample.lease_id for sample in samples], reply.verdicts)


def _in_order(lease_ids: Sequence[str], verdicts: Iterable[pb.Verdict]) -> list[pb.Verdict]:
    """One verdict for each lease; silence is a refusal."""
    by_lease = {verdict.lease_id: verdict for verdict in verdicts}
    return [by_lease.get(lease, pb.Verdict(lease_id=lease, reason="no verdict")) for lease in lease_ids]
