"""The durable state of a job, and the indexes over it.

Everything durable is what a snapshot holds. Indexes (counts by version, the queue, sets of tickets that something
must be done about) follow from it: every change of a ticket is bracketed by `unindex` and `index`, so that leasing
one sample costs O(group size + versions in the window + log tickets), never a scan.
"""

import heapq
from collections import Counter

import numpy as np

from drumroll_planner import records as r
from drumroll_planner.entries import Entries
from drumroll_planner.lag import LagWindow
from drumroll_planner.records import TicketId
from drumroll_planner.rules import Rules
from drumroll_planner.tickets import (
    FRESH,
    RETURNED,
    DecidedStep,
    Lease,
    QueueKey,
    Replica,
    Sample,
    Ticket,
    equal_rewards,
)


class State:
    """See the module. Only `facts.apply` and `snapshot.restore` change durable fields."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.opened: r.JobOpened | None = None
        self.passes: dict[int, r.PassPlanned] = {}
        self.cursor = TicketId(0, 0)
        """The next ticket to admit; everything before it is admitted."""
        self.ahead: set[TicketId] = set()
        """Tickets behind the cursor's place that are admitted already (adopted decisions of a lost ledger tail)."""
        self.tickets: dict[TicketId, Ticket] = {}
        """Admitted, not decided, not ended."""
        self.replicas: dict[str, Replica] = {}
        self.banned: dict[str, str] = {}
        """Replica to the instance that may not come back."""
        self.steps: dict[int, DecidedStep] = {}
        self.covered_steps: dict[int, tuple[tuple[TicketId, int], ...]] = {}
        """Tickets (id, row) of covered steps that a damaged checkpoint could bring back."""
        self.chains: dict[int, str] = {}
        """Chain digest after each retained step."""
        self.num_decided = 0
        self.num_trained = 0
        self.base_step = 0
        self.base_version = 0
        self.lineage = 0
        self.abandoned: list[tuple[int, int]] = []
        """Versions strictly between each pair are of no lineage any more."""
        self.rewound: r.Rewound | None = None
        self.checkpoints: list[r.Covered] = []
        """The newest coverages, oldest first."""
        self.announced: dict[int, r.Announced] = {}
        self.retired: set[int] = set()
        """Versions that were releasable at the newest coverage; they are forgotten at the next."""
        self.pins: set[tuple[str, int]] = set()
        self.trainer_epoch = 0
        self.trainer_step = 0
        self.live: dict[str, int] = {}
        self.counters: Counter[str] = Counter()
        self.failures: list[str] = []
        """Why the first few failed tickets failed."""
        self.completions = 0
        self.filtered_in_a_row = 0
        self.lengths = np.full(rules.num_prompts, np.nan, dtype=np.float32)
        """Mean answer length of each row when it was last decided, in tokens."""
        self.outcome: r.JobEnded | None = None
        self._begin_indexes()

    def _begin_indexes(self) -> None:
        """What follows from the durable fields."""
        self.entries = Entries()
        self.leases: dict[str, Lease] = {}
        self.by_request: dict[str, dict[str, None]] = {}
        self.decided_in: dict[TicketId, int] = {}
        self.out: dict[int, int] = {}
        self.incomplete: dict[int, int] = {}
        self.num_out = 0
        self.pending: dict[int | None, list[tuple[QueueKey, TicketId]]] = {}
        self.offenders: set[str] = set()
        """Replicas of too many bad samples in a row."""
        self.ready: set[TicketId] = set()
        self.equal: set[TicketId] = set()
        self.exhausted: set[TicketId] = set()
        self.awaited_tokens = 0
        self.awaited_unknown = 0

    # -- numbers -------------------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int | None:
        """Steps of a job that is given in steps; None for one in epochs."""
        return None if self.rules.steps is None else self.live.get("steps", self.rules.steps)

    @property
    def target_lag(self) -> int:
        target = self.live.get("target_policy_lag", self.rules.target_policy_lag)
        return min(target, self.rules.max_policy_lag)

    def version_of(self, step: int) -> int:
        """The version that the trainer holds when it trains `step` of this lineage."""
        if step < self.base_step and step in self.steps:
            return self.steps[step].decision.version
        return self.base_version + step - self.base_step

    @property
    def filling(self) -> int:
        """k: the version of the step being filled."""
        return self.version_of(self.num_decided)

    @property
    def unadmitted(self) -> int:
        """Tickets of an epochs job that are still to be admitted."""
        total = sum(self.pass_length(epoch) for epoch in range(self.cursor.epoch, self.rules.epochs or 0))
        return total - self.cursor.ordinal - len(self.ahead)

    def pass_length(self, epoch: int) -> int:
        planned = self.passes.get(epoch)
        return self.rules.num_prompts if planned is None else planned.num_tickets

    @property
    def places(self) -> int:
        """Tickets that may still be admitted, in all."""
        if self.num_steps is None:
            return self.unadmitted
        return (self.num_steps - self.num_decided) * self.rules.prompts_per_step - len(self.tickets)

    @property
    def no_more_steps(self) -> bool:
        if self.num_steps is None:
            return not self.tickets and self.unadmitted == 0
        return self.num_decided >= self.num_steps

    @property
    def free_places(self) -> int:
        """r: B, or what is left for the last step of an epochs job."""
        if self.num_steps is None:
            return min(self.rules.prompts_per_step, self.unadmitted + len(self.tickets))
        return self.rules.prompts_per_step

    @property
    def window(self) -> LagWindow:
        return LagWindow(
            version=self.filling,
            bound=self.rules.max_policy_lag,
            target=self.target_lag,
            free=self.free_places,
            per_step=self.rules.prompts_per_step,
            pending=max(0, self.num_decided - self.trained_through),
        )

    @property
    def covered(self) -> r.Covered | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def covered_step(self) -> int:
        return self.checkpoints[-1].step if self.checkpoints else 0

    @property
    def trained_through(self) -> int:
        """Steps below this one are trained: committed, or in a checkpoint."""
        return max(self.num_trained, self.covered_step)

    def chain_before(self, step: int) -> str | None:
        """Chain digest after `step - 1`; None where it is no longer known."""
        return "" if step == 0 else self.chains.get(step - 1)

    def is_abandoned(self, version: int) -> bool:
        return any(low < version < high for low, high in self.abandoned)

    @property
    def newest_version(self) -> int | None:
        """The newest announced version of this lineage."""
        return max((version for version in self.announced if not self.is_abandoned(version)), default=None)

    def is_admitted(self, ticket: TicketId) -> bool:
        """Whether the ticket was ever admitted, ended or not."""
        return ticket < self.cursor or ticket in self.ahead

    # -- indexes -------------------------------------------------------------------------------------------------

    def index(self, ticket: Ticket) -> None:
        """Count the ticket in; nothing of it may change before `unindex`."""
        samples = ticket.samples
        floors = [floor for sample in samples if (floor := sample.floor_version) is not None]
        ticket.version = min(floors, default=None)
        ticket.num_accepted = sum(sample.accepted is not None for sample in samples)
        ticket.num_waiting = sum(sample.waits for sample in samples)
        self._await(ticket, 1)
        if ticket.version is not None:
            self.num_out += 1
            _add(self.out, ticket.version, 1)
            if not ticket.complete:
                _add(self.incomplete, ticket.version, 1)
        if ticket.complete:
            wanted = not (self.rules.dynamic_sampling and equal_rewards(ticket))
            (self.ready if wanted else self.equal).add(ticket.id)
        elif any(sample.waits and sample.attempts >= self.rules.max_attempts for sample in samples):
            self.exhausted.add(ticket.id)
        elif ticket.num_waiting:
            self._queue(ticket)

    def unindex(self, ticket: Ticket) -> None:
        """Count the ticket out, as it was counted in."""
        self._await(ticket, -1)
        if ticket.version is not None:
            self.num_out -= 1
            _add(self.out, ticket.version, -1)
            if not ticket.complete:
                _add(self.incomplete, ticket.version, -1)
        for tickets in (self.ready, self.equal, self.exhausted):
            tickets.discard(ticket.id)

    def _await(self, ticket: Ticket, sign: int) -> None:
        missing = len(ticket.samples) - ticket.num_accepted
        if ticket.predicted_tokens:
            self.awaited_tokens += sign * missing * ticket.predicted_tokens
        else:
            self.awaited_unknown += sign * missing

    def _queue(self, ticket: Ticket) -> None:
        returned = any(sample.waits and sample.returned for sample in ticket.samples)
        place = (ticket.version, (RETURNED if returned else FRESH, *ticket.id))
        if ticket.queued != place:
            ticket.queued = place
            heapq.heappush(self.pending.setdefault(ticket.version, []), (place[1], ticket.id))

    def queue_head(self, bucket: int | None) -> tuple[QueueKey, Ticket] | None:
        """The first ticket of a bucket that still waits there; entries that no longer hold are thrown away."""
        heap = self.pending.get(bucket, [])
        while heap:
            key, ticket_id = heap[0]
            ticket = self.tickets.get(ticket_id)
            if ticket is not None and ticket.queued == (bucket, key):
                if ticket.num_waiting and ticket.version == bucket and ticket_id not in self.exhausted:
                    return key, ticket
                ticket.queued = None
            heapq.heappop(heap)
        return None

    def prune_queue(self) -> None:
        """Forget buckets of versions that no ticket has."""
        for version in [version for version in self.pending if version is not None and version not in self.out]:
            for _, ticket_id in self.pending.pop(version):
                if (ticket := self.tickets.get(ticket_id)) and ticket.queued and ticket.queued[0] == version:
                    ticket.queued = None

    # -- leases --------------------------------------------------------------------------------------------------

    def add_lease(self, sample: Sample, lease: Lease) -> None:
        sample.lease = lease
        self.leases[lease.lease_id] = lease
        self.by_request.setdefault(lease.request_id, {})[lease.lease_id] = None
        if (replica := self.replicas.get(lease.replica)) is not None:
            replica.leases[lease.lease_id] = None

    def drop_lease(self, sample: Sample) -> Lease | None:
        lease, sample.lease = sample.lease, None
        if lease is None:
            return None
        del self.leases[lease.lease_id]
        of_request = self.by_request[lease.request_id]
        del of_request[lease.lease_id]
        if not of_request:
            del self.by_request[lease.request_id]
        if (replica := self.replicas.get(lease.replica)) is not None:
            replica.leases.pop(lease.lease_id, None)
        return lease


def _add(counts: dict[int, int], version: int, amount: int) -> None:
    total = counts.get(version, 0) + amount
    if total:
        counts[version] = total
    else:
        del counts[version]
