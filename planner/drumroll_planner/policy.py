"""The scheduling policy: tickets, leases, steps and the lag rule as one deterministic state machine.

Methods that return records look at the state and change nothing durable. The caller journals the records and hands
them to `apply`, which is the only way the durable state changes, before it calls any of them again: their answers
build on the state as it stands. Time comes in as `now` (monotonic seconds), lease ids come from the incarnation and
a counter. Leases' deadlines, asks and plans are not durable: after a restart each lease has one full term from
`restored(now)`, replicas ask again, and `needs_plan` names the plans that are missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drumroll.errors import CorruptError, UserError
from drumroll_planner import ends, facts, replicas, trainer
from drumroll_planner import records as r
from drumroll_planner import snapshot as snapshots
from drumroll_planner.admission import checkpoint_wanted, needed_plan
from drumroll_planner.answers import (
    Assignment,
    HandedBack,
    HeartbeatAnswer,
    LeaseGrant,
    SampleReport,
    StepAnswer,
    Verdict,
    Verdicts,
)
from drumroll_planner.assigning import Assigning, grant_of
from drumroll_planner.clocks import Clocks
from drumroll_planner.gauges import gauges
from drumroll_planner.retention import oldest_needed_entry, releasable_versions
from drumroll_planner.rules import LagPolicy, Plan, Rules
from drumroll_planner.speeds import Speeds
from drumroll_planner.state import State
from drumroll_planner.steps import decide
from drumroll_planner.waiting import Ask, WaitingReplicas

__all__ = [
    "Assignment",
    "HandedBack",
    "HeartbeatAnswer",
    "LagPolicy",
    "LeaseGrant",
    "Plan",
    "Policy",
    "Rules",
    "SampleReport",
    "StepAnswer",
    "Verdict",
    "Verdicts",
]


class Policy:
    """See the module. One instance per job, in one thread."""

    def __init__(self, rules: Rules, *, incarnation: int = 0) -> None:
        self._begin(State(rules), incarnation)

    def _begin(self, state: State, incarnation: int) -> None:
        self._state = state
        self._incarnation = incarnation
        self._num_leases = 0
        self._clocks = Clocks(state.rules.lease_term_s)
        self._speeds = Speeds()
        self._waiting = WaitingReplicas(state, self._speeds)
        self._plans: dict[int, Plan] = {}
        self._trainer_stand: trainer.TrainerStand | None = None

    @property
    def rules(self) -> Rules:
        return self._state.rules

    @property
    def state(self) -> State:
        """To look at, never to change."""
        return self._state

    # -- durable state -------------------------------------------------------------------------------------------

    @classmethod
    def from_snapshot(cls, rules: Rules, snapshot: Mapping[str, Any], *, incarnation: int) -> "Policy":
        """The policy as it was when `snapshot()` was taken; journal records after it are then applied.

        Raises:
            ValueError: the snapshot has another format.
        """
        policy = cls(rules, incarnation=incarnation)
        policy._begin(snapshots.restore(rules, snapshot), incarnation)
        return policy

    def snapshot(self) -> dict[str, Any]:
        """JSON-able durable state: round-trips through `json` and `from_snapshot` exactly."""
        return snapshots.snapshot(self._state)

    def apply(self, record: r.Record) -> None:
        """Change the durable state by one fact."""
        lease = self._state.leases.get(record.lease_id) if isinstance(record, r.Returned | r.Accepted) else None
        facts.apply(self._state, record)
        if lease is not None:
            self._clocks.ended(lease.lease_id)
            self._waiting.moved(lease.replica)
        match record:
            case r.Leased():
                self._clocks.started(record.lease_id)
                self._waiting.moved(record.replica)
            case r.ReplicaJoined():
                self._clocks.heard(record.replica)
                self._waiting.remove(record.replica)
                self._waiting.fleet_changed()
            case r.Attested():
                self._waiting.moved(record.replica)
                self._waiting.fleet_changed()
            case r.ReplicaLeft():
                if record.replica not in self._state.replicas:
                    self._speeds.forget(record.replica)
                self._waiting.fleet_changed()
            case r.Announced() | r.Rewound():
                self._waiting.fleet_changed()

    def restored(self, now: float) -> None:
        """Called once after a restart's replay: every lease gets a full term, every replica a fresh heartbeat."""
        self._clocks.now = now
        self._clocks.restart(self._state)

    # -- plans ---------------------------------------------------------------------------------------------------

    def needs_plan(self) -> int | None:
        """The epoch whose plan must be added now, or None. The next pass is asked for before this one is used up."""
        return needed_plan(self._state, self._plans)

    def add_plan(self, plan: Plan) -> tuple[r.Record, ...]:
        """Give the pass that `needs_plan` named, or (after a restart) one that a journaled PassPlanned names.

        Raises:
            CorruptError: the plan is not the one that was journaled for this pass.
        """
        known = self._state.passes.get(plan.epoch)
        if known is not None and (known.plan_digest, known.num_tickets) != (plan.digest, len(plan)):
            raise CorruptError(
                f"the plan of epoch {plan.epoch} has digest {plan.digest} and {len(plan)} tickets; "
                f"the journal has {known.plan_digest} and {known.num_tickets}"
            )
        self._plans[plan.epoch] = plan
        for epoch in [epoch for epoch in self._plans if epoch < self._state.cursor.epoch]:
            del self._plans[epoch]
        return () if known is not None else (r.PassPlanned(plan.epoch, len(plan), plan.digest, plan.planner),)

    def length_history(self) -> npt.NDArray[np.float32]:
        """Mean answer length of each row when it was last trained, in tokens [num_prompts]; NaN where it never was."""
        return self._state.lengths.copy()

    # -- replicas ------------------------------------------------------------------------------------------------

    def is_banned(self, replica: str, instance: str) -> bool:
        """Whether this instance was taken out of service for bad samples; registering it again changes nothing."""
        return self._state.banned.get(replica) == instance

    def register_replica(self, now: float, replica: str, instance: str, slots: int) -> tuple[r.Record, ...]:
        """A replica (again): leases of an older instance of the same name come back as lost."""
        self._clocks.now = now
        if self._is_registered(replica, instance):
            self._clocks.heard(replica)
        return replicas.joins(self._state, self._clocks, replica, instance, slots)

    def heartbeat(
        self, now: float, replica: str, instance: str, held: Mapping[str, int], attested: int | None, draining: bool
    ) -> HeartbeatAnswer:
        """`held`: lease id to tokens done. Progress renews a lease; being alive does not."""
        self._clocks.now = now
        if not self._is_registered(replica, instance):
            return HeartbeatAnswer((), False, (), tuple(held))
        self._clocks.heard(replica)
        self._speeds.heard(now, replica, instance, held)
        self._waiting.moved(replica)
        known = self._state.replicas[replica]
        for lease_id in [lease_id for lease_id in held if lease_id in known.leases]:
            self._clocks.progress(lease_id, held[lease_id])
        if draining:
            self.withdraw(replica)
        records = [] if attested is None else replicas.attests(self._state, known, attested)
        stopped = {record.lease_id for record in records if isinstance(record, r.Returned)}
        if self._state.outcome is not None:
            return HeartbeatAnswer(tuple(records), True, (), tuple(held))
        missing = [lease_id for lease_id in known.leases if lease_id not in held and lease_id not in stopped]
        return HeartbeatAnswer(
            records=tuple(records),
            known=True,
            missing=tuple(grant_of(self._state, self._state.leases[lease_id]) for lease_id in missing),
            abort=tuple(lease_id for lease_id in held if lease_id not in known.leases or lease_id in stopped),
        )

    def ask(self, now: float, replica: str, instance: str, free_slots: int, request_id: str) -> bool:
        """The replica waits for work, for up to `free_slots` samples. False: not registered. Not durable."""
        self._clocks.now = now
        if not self._is_registered(replica, instance):
            return False
        self._clocks.heard(replica)
        if free_slots > 0:
            self._waiting.add(replica, Ask(free_slots, request_id))
        return True

    def withdraw(self, replica: str) -> None:
        """The replica no longer waits (its call ended)."""
        self._waiting.remove(replica)

    def assign(self, now: float) -> Assignment:
        """Lease what may be leased to the replicas that wait, each sample where the step time after it is smallest.

        A replica that gets something no longer waits.
        """
        self._clocks.now = now
        if self._state.outcome is not None or self._state.no_more_steps:
            return Assignment((), {}, frozenset())
        return Assigning(self._state, self._plans, self._waiting, self._lease_id).run()

    def _lease_id(self) -> str:
        self._num_leases += 1
        return f"{self._incarnation}-{self._num_leases}"

    def granted(self, request_id: str) -> tuple[LeaseGrant, ...]:
        """Leases that an earlier call with this request id got and that are still live: the answer to its retry."""
        lease_ids = self._state.by_request.get(request_id, {})
        return tuple(grant_of(self._state, self._state.leases[lease_id]) for lease_id in lease_ids)

    def report(self, now: float, replica: str, instance: str, samples: Sequence[SampleReport]) -> Verdicts:
        """Accept samples whose lease is the current one of its sample; a repeated accepted report is accepted again."""
        self._clocks.now = now
        if self._is_registered(replica, instance):
            self._clocks.heard(replica)
        return replicas.report(self._state, replica, instance, samples)

    def hand_back(
        self, now: float, replica: str, instance: str, samples: Sequence[HandedBack], leaving: bool
    ) -> Verdicts:
        """Take leases back; partials of a current lease are kept. `leaving` also ends the registration."""
        self._clocks.now = now
        if self._is_registered(replica, instance):
            self._clocks.heard(replica)
        return replicas.hand_back(self._state, self._clocks, replica, instance, samples, leaving)

    def _is_registered(self, replica: str, instance: str) -> bool:
        known = self._state.replicas.get(replica)
        return known is not None and known.instance == instance

    # -- trainer -------------------------------------------------------------------------------------------------

    def register_trainer(self, now: float, step: int, chain: str, version: int, lineage: int) -> tuple[r.Record, ...]:
        """A new trainer process that goes on with `step`; older trainer epochs are void from now on.

        One whose checkpoint is of an older lineage is answered with the rewind until it announces its version.
        """
        self._clocks.now = now
        self._trainer_stand = trainer.TrainerStand(version, lineage)
        return (r.TrainerRegistered(self._state.trainer_epoch + 1, step),)

    @property
    def trainer_epoch(self) -> int:
        """Epoch of the newest trainer."""
        return self._state.trainer_epoch

    def next_step(self, step: int, chain: str, known: Sequence[r.Decided]) -> StepAnswer:
        """The decision of `step`, if there is one. `known`: decisions that the ledger lost, to be adopted."""
        return trainer.next_step(self._state, step, chain, known, self._trainer_stand)

    def trained(self, step: int, version: int, chain: str, stats: Mapping[str, float]) -> tuple[r.Record, ...]:
        """The trainer has made `version` in `step`. A replayed step gives no records."""
        return trainer.trained(self._state, step, version, chain, dict(stats))

    def covered(self, covered: r.Covered) -> tuple[r.Record, ...]:
        """A durable checkpoint holds all steps below `covered.step`: their tickets end."""
        return trainer.covered(self._state, covered)

    def lost_samples(self, step: int, samples: Iterable[tuple[r.TicketId, int]]) -> tuple[r.Record, ...]:
        """Samples of a decided step are gone: rewind to the newest checkpoint."""
        return trainer.lost_samples(self._state, step, list(samples))

    def announce(self, weights: r.Announced, diverged: r.ReplayDiverged | None) -> tuple[r.Record, ...]:
        """A version is published. Announcing a known version again gives no records."""
        if weights.lineage == self._state.lineage:
            self._trainer_stand = None
        return trainer.announce(self._state, weights, diverged)

    def pin(self, holder: str, version: int) -> tuple[bool, tuple[r.Record, ...]]:
        """Keep a version until it is unpinned; False where it is unknown or already released."""
        if (holder, version) in self._state.pins:
            return True, ()
        if version not in self._state.announced or version in releasable_versions(self._state):
            return False, ()
        return True, (r.Pinned(holder, version),)

    def unpin(self, holder: str, version: int) -> tuple[r.Record, ...]:
        """The holder no longer needs the version."""
        return (r.Unpinned(holder, version),) if (holder, version) in self._state.pins else ()

    def releasable(self) -> tuple[int, ...]:
        """Announced versions that nothing needs: not kept, pinned, within the bound, or the newest checkpoint's."""
        return releasable_versions(self._state)

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> tuple[r.Record, ...]:
        """Expire leases and silent replicas, form steps, end tickets and the job. Call often, and after each call.

        Each call takes the first of these that there is to do; call again, after `apply`, until it returns nothing.
        """
        self._clocks.now = now
        if self._state.outcome is not None:
            return ()
        for records in self._due():
            if records:
                return tuple(records)
        return ()

    def _due(self) -> Iterable[Sequence[r.Record]]:
        state = self._state
        yield replicas.expiries(state, self._clocks)
        yield ends.failed_tickets(state)
        yield ends.filtered_tickets(state)
        yield ends.job_failure(state)
        yield ends.past_the_bound(state)
        yield decide(state)
        yield ends.covered_tickets(state)
        yield ends.surplus_tickets(state)
        yield ends.job_completion(state)

    def set_live(self, name: str, value: int) -> tuple[r.Record, ...]:
        """Change what may change while the job runs: steps, replicas, target_policy_lag.

        Raises:
            UserError: another name, or a value that cannot be.
        """
        state, bound = self._state, self.rules.max_policy_lag
        # The trainer may have been told that there are no more, and ends once its checkpoint is written.
        last_is_done = state.no_more_steps and state.trained_through >= state.num_decided
        match name:
            case "steps" if self.rules.steps is None:
                raise UserError("steps: this job is given in epochs; its number of steps cannot be set")
            case "steps" if value < 1:
                raise UserError(f"steps: {value} is too small; write 1 or more")
            case "steps" if last_is_done and value != state.num_steps:
                raise UserError("steps: the last step is trained already; go on from it in a new job with resumeFrom")
            case "replicas" if value < 0:
                raise UserError(f"replicas: {value} is negative; write 0 or more")
            case "target_policy_lag" if not 0 <= value <= bound:
                raise UserError(f"target_policy_lag: {value} is not within 0 and maxPolicyLag; write 0 to {bound}")
            case "steps" | "replicas" | "target_policy_lag":
                return (r.LiveSet(name, value),)
            case _:
                raise UserError(f"{name} cannot be changed while the job runs; steps, replicas, target_policy_lag can")

    # -- views ---------------------------------------------------------------------------------------------------

    def releasable_entries(self) -> tuple[tuple[str, ...], str | None]:
        """(entry ids that may be deleted from the stream now, id below which nothing is needed or None)."""
        return tuple(self._state.entries.released), oldest_needed_entry(self._state)

    def entries_deleted(self, entry_ids: Iterable[str]) -> None:
        """The entries are gone; not durable (deleting again is harmless)."""
        for entry_id in entry_ids:
            self._state.entries.deleted(entry_id)

    @property
    def checkpoint_wanted(self) -> bool:
        """The stream is over 70 % full."""
        return checkpoint_wanted(self._state)

    @property
    def outcome(self) -> r.JobEnded | None:
        """How the job ended, or None."""
        return self._state.outcome

    @property
    def speeds(self) -> Speeds:
        """What was learned of the replicas' speeds."""
        return self._speeds

    def gauges(self) -> dict[str, float]:
        """What views and metrics show: tickets by state and end, out, k, lag of the tickets out, bytes, counters."""
        return gauges(self._state, num_waiting_replicas=len(self._waiting.asks))
