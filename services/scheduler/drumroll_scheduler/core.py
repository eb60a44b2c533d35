"""Owns the policy: one event loop, no await between a proposal and its application.

    call -> propose -> apply -> queue for the journal -> (append, shared with other calls) -> reply
                                     ^
    settle, before each append: tick, evaluate, plan the next pass, lease to the replicas that wait

What a call is told is told after `durable()`. Long polls wait for the journal to change.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from drumroll_planner import records as r
from drumroll_planner.asp import AspPlan
from drumroll_planner.evaluation import EvalRounds
from drumroll_planner.policy import LeaseGrant, Plan, Policy, Rules

from drumroll.clock import Clock
from drumroll_scheduler.journal import Journal
from drumroll_scheduler.lines import LinesFile, MetricsFile
from drumroll_scheduler.planning import PassPlanner
from drumroll_scheduler.rules import steps_total
from drumroll_scheduler.status import STORE_FAILING, Presence, View, evaluation_gauges, evaluation_row, metrics_row
from drumroll_scheduler.story import Story
from drumroll_scheduler.timeline import record_row

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What a replica that asked for work gets."""

    grants: tuple[LeaseGrant, ...] = ()
    update_first: bool = False
    register_again: bool = False
    finished: bool = False


@dataclass(slots=True)
class Waiter:
    """A replica's call that waits for work."""

    instance: str
    request_id: str
    free_slots: int
    update_first: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Core:
    """The policy, its journal, and what views need."""

    def __init__(
        self,
        *,
        rules: Rules,
        policy: Policy,
        story: Story,
        journal: Journal,
        passes: PassPlanner,
        clock: Clock,
        evaluation: EvalRounds,
        metrics: MetricsFile,
        timeline: LinesFile,
        evaluations: LinesFile,
    ) -> None:
        self.rules = rules
        self.policy = policy
        self.evaluation = evaluation
        self.story = story
        self.journal = journal
        self.clock = clock
        self.metrics = metrics
        self.timeline = timeline
        self.evaluations = evaluations
        self.presence: dict[str, Presence] = {}
        self.trainer_heard_at: float | None = None
        self.counters: dict[str, float] = {}
        self.sweep_now = asyncio.Event()
        self.ended = asyncio.Event()
        """Set once the policy has ended the job."""
        if policy.outcome is not None:
            self.ended.set()
        self.passes = passes
        self._waiting: dict[str, Waiter] = {}

    @property
    def incarnation(self) -> int:
        return self.journal.ledger.incarnation

    @property
    def steps_total(self) -> int:
        return steps_total(self.rules, self.story.live.get("steps"))

    def count(self, name: str, amount: float = 1.0) -> None:
        """Raise one of the shell's own counters."""
        self.counters[name] = self.counters.get(name, 0.0) + amount

    # -- records -------------------------------------------------------------------------------------------------

    def take(self, records: Sequence[r.Record]) -> None:
        """Apply records and queue them for the journal; the caller replies after `durable()`."""
        now = self.clock.wall()
        for record in records:
            self.passes.observe(self.policy.state, record)
            self.policy.apply(record)
            self._show(record, now)
        self.journal.add(records)

    async def durable(self) -> None:
        """Wait until all that was taken so far is in the ledger."""
        await self.journal.durable()

    def settle(self) -> None:
        """Let time pass, plan what is to be planned, lease what may be leased."""
        now = self.clock.monotonic()
        while records := self.policy.tick(now):
            if any(isinstance(record, r.JobEnded) for record in records):
                if self._end_waits(records, now):
                    break
                self.take(self.evaluation.stop(self.policy.state))
            self.take(records)
        if self.policy.outcome is None:
            self.take(self.evaluation.tick(now, wall=self.clock.wall(), state=self.policy.state))
        self._plan()
        if self.policy.outcome is not None:
            self._wake_all()
        elif self._waiting:
            self._assign(now)

    def _plan(self) -> None:
        """Plans that are needed now, as far as they are made; the next pass's is begun ahead of time."""
        self.passes.look_ahead(self.policy.state)
        while (epoch := self.policy.needs_plan()) is not None and (plan := self.passes.plan(epoch)) is not None:
            # The protocol's attributes are only read, which its declaration cannot say.
            self.take(self.policy.add_plan(cast(Plan, plan)))
            if isinstance(plan, AspPlan) and plan.target_lag != self.policy.state.target_lag:
                self.take(self.policy.set_live("target_policy_lag", plan.target_lag))
        self.take(self.passes.notes())

    def _end_waits(self, records: Sequence[r.Record], now: float) -> bool:
        """Whether a complete job goes on until its last version is evaluated."""
        complete = any(isinstance(record, r.JobEnded) and record.outcome is r.JobOutcome.COMPLETE for record in records)
        return complete and self.evaluation.end_waits(now, self.policy.state)

    def _show(self, record: r.Record, now: float) -> None:
        done = self.story.apply(record, now)
        row = record_row(record, now)
        if row is not None:
            self.timeline.add(row)
        # A decision that was adopted from the trainer is trained without figures: an older row says more.
        if done is not None and (done.stats or done.step > self.metrics.last_step):
            self.metrics.add_step(metrics_row(done, self.gauges()))
        elif isinstance(record, r.Rewound):
            logger.warning("back to step %d, lineage %d: %s", record.step, record.lineage, record.reason)
            self.metrics.cut(from_step=record.step)
        elif isinstance(record, r.Evaluated):
            self.evaluations.add(evaluation_row(record, now))
        elif isinstance(record, r.Covered):
            self.sweep_now.set()
        elif isinstance(record, r.JobEnded):
            self.ended.set()

    # -- leases --------------------------------------------------------------------------------------------------

    async def lease(
        self, replica: str, instance: str, *, free_slots: int, request_id: str, wait_s: float
    ) -> LeaseAnswer:
        """Wait for work, at most `wait_s`."""
        if self.policy.outcome is None and not self._granted(request_id):
            now = self.clock.monotonic()
            if not self.policy.ask(now, replica, instance, free_slots, request_id):
                return LeaseAnswer(register_again=True)
            update_first = await self._wait_for_work(replica, Waiter(instance, request_id, free_slots), wait_s)
        else:
            update_first = False
        grants = self._granted(request_id)
        if self.policy.outcome is not None:
            await self.durable()
            return LeaseAnswer(finished=True)
        if grants:
            await self.durable()
        return LeaseAnswer(grants, update_first=update_first and not grants)

    def _granted(self, request_id: str) -> tuple[LeaseGrant, ...]:
        return (*self.evaluation.granted(request_id), *self.policy.granted(request_id))

    async def _wait_for_work(self, replica: str, waiter: Waiter, wait_s: float) -> bool:
        """True: the replica gets nothing before it has newer weights."""
        older = self._waiting.get(replica)
        self._waiting[replica] = waiter
        if older is not None:
            older.woken.set()
        self.journal.poke()
        try:
            async with asyncio.timeout(wait_s):
                await waiter.woken.wait()
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(replica) is waiter:
                del self._waiting[replica]
                self.policy.withdraw(replica)
        return waiter.update_first

    def _assign(self, now: float) -> None:
        self._assign_evaluation(now)
        assignment = self.policy.assign(now)
        self.take(assignment.records)
        for name, waiter in self._waiting.items():
            waiter.update_first = name in assignment.update_first
            # Where nothing newer exists yet, an early answer would only make the replica ask again at once.
            if name in assignment.grants or (waiter.update_first and self._can_update(name)):
                waiter.woken.set()

    def _assign_evaluation(self, now: float) -> None:
        """Before training: it takes no more than its share, and training would take all."""
        for name, waiter in self._waiting.items():
            if waiter.woken.is_set():
                continue
            state = self.policy.state
            grants = self.evaluation.grant(now, name, waiter.free_slots, waiter.request_id, state=state)
            if grants:
                waiter.free_slots -= len(grants)
                waiter.woken.set()
                self.policy.withdraw(name)
                # What is left of its slots may get training samples with the same reply.
                self.policy.ask(now, name, waiter.instance, waiter.free_slots, waiter.request_id)

    def weights_for(self, name: str) -> r.Announced | None:
        """The weights that a replica is to have: the newest, or those that it is to evaluate."""
        return self.evaluation.weights_for(name, self.policy.state) or self.story.newest

    def _can_update(self, name: str) -> bool:
        replica, newest = self.story.replicas.get(name), self.weights_for(name)
        if replica is None or newest is None:
            return False
        return replica.attested is None or replica.attested < newest.version

    def _wake_all(self) -> None:
        for waiter in self._waiting.values():
            waiter.woken.set()

    # -- views ---------------------------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """The policy's gauges, those of evaluation, and the shell's counters."""
        shell = {**self.evaluation.gauges(), **evaluation_gauges(self.story), **self.passes.gauges()}
        return {**self.policy.gauges(), **shell, **self.counters}

    def flush(self) -> None:
        """Write the rows gathered so far."""
        for file in (self.metrics, self.timeline, self.evaluations):
            file.flush()

    def view(self) -> View:
        """What a status is made of, now."""
        failing_s = self.journal.store_failing_s
        failing = {STORE_FAILING: failing_s} if failing_s is not None else {}
        return View(
            story=self.story,
            presence=self.presence,
            gauges={**self.gauges(), **failing},
            steps_total=self.steps_total,
            now=self.clock.monotonic(),
            trainer_heard_at=self.trainer_heard_at,
        )
