"""Tickets, samples, leases and replicas as the policy holds them. Mutable, owned by one State.

A ticket in flight with eight samples takes 6 to 7 KB (`bench/planner.py --parts size`); the accepted report is kept as
it was journaled.
"""

from dataclasses import dataclass, field

from drumroll_planner import records as r
from drumroll_planner.records import TicketId

RETURNED, FRESH = 0, 1
"""Ranks in the queue: what came back goes before what was never leased."""

QueueKey = tuple[int, int, int]
"""(rank, epoch, ordinal)."""


@dataclass(slots=True)
class Lease:
    lease_id: str
    kind: r.LeaseKind
    ticket: TicketId
    index: int
    attempt: int
    replica: str
    instance: str
    version: int
    request_id: str
    after_entry: str
    """Newest stream entry known when the lease was given: whatever is written under it comes later in the stream."""


@dataclass(slots=True)
class Kept:
    """A partial, and the newest version that can be in it."""

    ref: r.PartialRef
    newest_version: int


@dataclass(slots=True)
class Sample:
    attempts: int = 0
    """Charged returns so far."""
    returned: bool = False
    """It came back and waits at the head of the queue."""
    lease: Lease | None = None
    partial: Kept | None = None
    accepted: r.Accepted | None = None

    @property
    def waits(self) -> bool:
        return self.lease is None and self.accepted is None

    @property
    def floor_version(self) -> int | None:
        """Oldest version of the tokens that are there or may come under the lease; None where there is nothing."""
        if self.accepted is not None:
            return self.accepted.oldest_version
        if self.lease is not None and self.partial is not None:
            return min(self.lease.version, self.partial.ref.oldest_version)
        if self.lease is not None:
            return self.lease.version
        return None if self.partial is None else self.partial.ref.oldest_version

    @property
    def num_tokens(self) -> int:
        """Tokens kept."""
        if self.accepted is not None:
            return self.accepted.num_tokens
        return 0 if self.partial is None else self.partial.ref.num_tokens


@dataclass(slots=True)
class Ticket:
    """An admitted ticket; the derived fields are kept by `State.index`."""

    id: TicketId
    row: int
    predicted_tokens: int
    samples: list[Sample]
    completed_at: int = 0
    """Place in the order of completion; 0 while incomplete."""
    trouble: str = ""
    """Why its last charged attempt failed."""
    version: int | None = None
    num_accepted: int = 0
    num_waiting: int = 0
    queued: tuple[int | None, QueueKey] | None = None
    """Where it stands in the queue: (version bucket, key)."""

    @property
    def complete(self) -> bool:
        return self.num_accepted == len(self.samples)

    @property
    def num_tokens(self) -> int:
        return sum(sample.num_tokens for sample in self.samples)

    def waiting(self) -> list[int]:
        """Samples to be leased: those that came back first, then by index."""
        indexes = [index for index, sample in enumerate(self.samples) if sample.waits]
        return sorted(indexes, key=lambda index: (not self.samples[index].returned, index))

    def leases(self) -> list[Lease]:
        return [sample.lease for sample in self.samples if sample.lease is not None]


@dataclass(slots=True)
class Replica:
    name: str
    instance: str
    slots: int
    version: int | None = None
    """Attested weights."""
    bad_in_a_row: int = 0
    leases: dict[str, None] = field(default_factory=dict)
    """Live leases, oldest first (a dict for its order)."""


@dataclass(slots=True)
class DecidedStep:
    """A decision that no checkpoint covers yet, and its tickets that have not ended."""

    decision: r.Decided
    tickets: dict[TicketId, Ticket]


def new_samples(group_size: int) -> list[Sample]:
    return [Sample() for _ in range(group_size)]


def equal_rewards(ticket: Ticket) -> bool:
    """Whether a complete group teaches nothing: its rewards differ by no more than 1e-6."""
    rewards = [sample.accepted.reward for sample in ticket.samples if sample.accepted is not None]
    return max(rewards) - min(rewards) <= 1e-6
