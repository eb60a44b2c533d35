"""The audit's books: what a journal says so far, kept without the policy's code."""

from dataclasses import dataclass

from drumroll_planner import records as r
from drumroll_planner.records import TicketId


@dataclass(slots=True)
class Sample:
    lease: str | None = None
    accepted: r.Accepted | None = None


class Books:
    """Plain data; `audit` decides what may be written into it."""

    def __init__(self) -> None:
        self.rules_digest: str | None = None
        self.passes: dict[int, int] = {}
        self.rows: dict[TicketId, int] = {}
        self.ends: dict[TicketId, r.TicketEnd] = {}
        self.step_of: dict[TicketId, int] = {}
        """Of tickets in steps of the present lineage."""
        self.decisions: list[r.Decided] = []
        self.covered: r.Covered | None = None
        self.replicas: dict[str, tuple[str, int | None]] = {}
        """Name to (instance, attested version)."""
        self.announced: set[int] = set()
        self.lease_ids: set[str] = set()
        self.leases: dict[str, r.Leased] = {}
        self.lineage = 0
        self.next_version = 0
        self.trainer_epoch = 0
        self._samples: dict[TicketId, dict[int, Sample]] = {}

    @property
    def covered_step(self) -> int:
        return 0 if self.covered is None else self.covered.step

    def sample(self, ticket: TicketId, index: int) -> Sample:
        return self._samples.setdefault(ticket, {}).setdefault(index, Sample())

    def has_lease(self, ticket: TicketId) -> bool:
        return any(sample.lease is not None for sample in self._samples.get(ticket, {}).values())

    def end_lease(self, lease_id: str) -> None:
        lease = self.leases.pop(lease_id, None)
        if lease is not None:
            self.sample(lease.ticket, lease.index).lease = None

    def forget_undecided(self, num_prompts: int) -> None:
        """The job was resumed under other rules: what is out starts again, on the rows that there are now."""
        self.leases.clear()
        for ticket in self.rows.keys() - self.step_of.keys() - self.ends.keys():
            self.rows[ticket] %= num_prompts
        for ticket in self._samples.keys() - self.step_of.keys() - self.ends.keys():
            self._samples[ticket] = {}

    def decision(self, step: int) -> r.Decided | None:
        return self.decisions[step] if step < len(self.decisions) else None

    def version_before(self, step: int) -> int | None:
        """The version that a checkpoint before `step` holds on the present lineage."""
        if step == len(self.decisions):
            return self.next_version
        decision = self.decision(step)
        return None if decision is None else decision.version

    def rewind(self, record: r.Rewound) -> None:
        """Decisions from `record.step` on are void, and so are the ends that came of them."""
        del self.decisions[record.step :]
        for ticket in [ticket for ticket, step in self.step_of.items() if step >= record.step]:
            del self.step_of[ticket]
            self.ends.pop(ticket, None)
            self._samples[ticket] = {}
        if self.covered_step > record.step:
            self.covered = None
        self.lineage = record.lineage
        self.next_version = record.version
