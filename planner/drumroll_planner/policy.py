"""The scheduling policy: tickets, leases, steps and the lag rule as one deterministic state machine.

`propose` methods look at the state and return records; they change nothing durable. The caller journals the
records and hands them to `apply`, which is the only way the durable state changes. Time comes in as `now`
(monotonic seconds), ids come in as `incarnation` and an internal counter. Leases' deadlines are not durable: after
a restart each lease has one full term from `restored(now)`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from drumroll_planner import records as r

LagPolicy = Literal["wait", "drop", "mask"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy needs to know of a job; immutable but for what `LiveSet` may change."""

    num_prompts: int
    group_size: int
    prompts_per_step: int
    max_policy_lag: int
    target_policy_lag: int
    lag_policy: LagPolicy
    steps: int | None
    epochs: int | None
    """Exactly one of steps and epochs is set."""
    max_attempts: int
    max_failed_tickets: float
    lease_term_s: float
    dynamic_sampling: bool
    max_sampling_tries: int
    order: Literal["plan", "completion"]
    """Which of equally old complete tickets a step takes first."""
    max_stream_bytes: int
    """Admission stops at 85 % of this, a checkpoint is asked for at 70 %."""
    keep_versions: int
    max_bad_samples_in_a_row: int = 3
    """A replica that sends this many bad samples in a row is taken out of service."""


class Plan(Protocol):
    """One pass: which row stands at each ordinal, and what is predicted of it."""

    epoch: int
    digest: str
    planner: str

    def __len__(self) -> int: ...

    def row(self, ordinal: int) -> int:
        """Row of the prepared data set."""
        ...

    def predicted_tokens(self, ordinal: int) -> int:
        """Expected length of one answer in tokens; 0 where unknown."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """What a replica is told of a lease."""

    lease_id: str
    kind: r.LeaseKind
    ticket: r.TicketId
    row: int
    index: int
    attempt: int
    version: int
    partial: r.PartialRef | None
    predicted_tokens: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Answers to the replicas that ask for work."""

    records: tuple[r.Record, ...]
    grants: Mapping[str, tuple[LeaseGrant, ...]]
    """Replica name to its new leases; replicas that get nothing are absent."""
    update_first: frozenset[str]
    """Replicas that get nothing because their weights are too old for the lag rule."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    records: tuple[r.Record, ...]
    known: bool
    """False: the replica or this instance of it is not registered."""
    missing: tuple[LeaseGrant, ...]
    abort: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampleReport:
    lease_id: str
    ticket: r.TicketId
    index: int
    attempt: int
    entry_id: str
    sha256: bytes
    num_bytes: int
    oldest_version: int
    newest_version: int
    num_tokens: int
    reward: float
    finished: bool


@dataclass(frozen=True, slots=True)
class HandedBack:
    lease_id: str
    reason: r.ReturnReason
    partial: r.PartialRef | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to one reported or handed back sample."""

    lease_id: str
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdicts:
    records: tuple[r.Record, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """Answer to the trainer's next-step call."""

    outcome: Literal["decided", "wait", "finished", "send_known", "rewind", "failed"]
    records: tuple[r.Record, ...] = ()
    decision: r.Decided | None = None
    rewind: r.Rewound | None = None
    reason: str = ""


class Policy:
    """See the module. One instance per job, in one thread."""

    def __init__(self, rules: Rules, *, incarnation: int = 0) -> None:
        raise NotImplementedError

    # -- durable state -------------------------------------------------------------------------------------------

    @classmethod
    def from_snapshot(cls, rules: Rules, snapshot: Mapping[str, Any], *, incarnation: int) -> "Policy":
        """The policy as it was when `snapshot()` was taken; journal records after it are then applied."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Any]:
        """JSON-able durable state: round-trips through `json` and `from_snapshot` exactly."""
        raise NotImplementedError

    def apply(self, record: r.Record) -> None:
        """Change the durable state by one fact."""
        raise NotImplementedError

    def restored(self, now: float) -> None:
        """Called once after a restart's replay: every lease gets a full term, every replica a fresh heartbeat."""
        raise NotImplementedError

    # -- plans ---------------------------------------------------------------------------------------------------

    def needs_plan(self) -> int | None:
        """The epoch whose plan must be added now, or None. The next pass is asked for before this one is used up."""
        raise NotImplementedError

    def add_plan(self, plan: Plan) -> tuple[r.Record, ...]:
        """Give the pass that `needs_plan` named, or (after a restart) one that a journaled PassPlanned names."""
        raise NotImplementedError

    # -- replicas ------------------------------------------------------------------------------------------------

    def register_replica(self, now: float, replica: str, instance: str, slots: int) -> tuple[r.Record, ...]:
        """A replica (again): leases of an older instance of the same name come back as lost."""
        raise NotImplementedError

    def heartbeat(
        self, now: float, replica: str, instance: str, held: Mapping[str, int], attested: int | None, draining: bool
    ) -> HeartbeatAnswer:
        """`held`: lease id to tokens done. Progress renews a lease; being alive does not."""
        raise NotImplementedError

    def ask(self, now: float, replica: str, instance: str, free_slots: int, request_id: str) -> bool:
        """The replica waits for work, for up to `free_slots` samples. False: not registered. Not durable."""
        raise NotImplementedError

    def withdraw(self, replica: str) -> None:
        """The replica no longer waits (its call ended)."""
        raise NotImplementedError

    def assign(self, now: float) -> Assignment:
        """Lease what may be leased to the replicas that wait, sample by sample to the least loaded."""
        raise NotImplementedError

    def granted(self, request_id: str) -> tuple[LeaseGrant, ...]:
        """Leases that an earlier call with this request id got and that are still live: the answer to its retry."""
        raise NotImplementedError

    def report(self, now: float, replica: str, instance: str, samples: Sequence[SampleReport]) -> Verdicts:
        """Accept samples whose lease is the current one of its sample; a repeated accepted report is accepted again."""
        raise NotImplementedError

    def hand_back(
        self, now: float, replica: str, instance: str, samples: Sequence[HandedBack], leaving: bool
    ) -> Verdicts:
        """Take leases back; partials of a current lease are kept. `leaving` also ends the registration."""
        raise NotImplementedError

    # -- trainer -------------------------------------------------------------------------------------------------

    def register_trainer(self, now: float, step: int, chain: str, version: int, lineage: int) -> tuple[r.Record, ...]:
        """A new trainer process that goes on with `step`; older trainer epochs are void from now on."""
        raise NotImplementedError

    @property
    def trainer_epoch(self) -> int:
        """Epoch of the newest trainer."""
        raise NotImplementedError

    def next_step(self, step: int, chain: str, known: Sequence[r.Decided]) -> StepAnswer:
        """The decision of `step`, if there is one. `known`: decisions that the ledger lost, to be adopted."""
        raise NotImplementedError

    def trained(self, step: int, version: int, chain: str, stats: Mapping[str, float]) -> tuple[r.Record, ...]:
        """The trainer has made `version` in `step`. A replayed step gives no records."""
        raise NotImplementedError

    def covered(self, covered: r.Covered) -> tuple[r.Record, ...]:
        """A durable checkpoint holds all steps below `covered.step`: their tickets end."""
        raise NotImplementedError

    def lost_samples(self, step: int, samples: Iterable[tuple[r.TicketId, int]]) -> tuple[r.Record, ...]:
        """Samples of a decided step are gone: rewind to the newest checkpoint."""
        raise NotImplementedError

    def announce(self, weights: r.Announced, diverged: r.ReplayDiverged | None) -> tuple[r.Record, ...]:
        """A version is published. Announcing a known version again gives no records."""
        raise NotImplementedError

    def pin(self, holder: str, version: int) -> tuple[bool, tuple[r.Record, ...]]:
        """Keep a version until it is unpinned; False where it is unknown or already released."""
        raise NotImplementedError

    def unpin(self, holder: str, version: int) -> tuple[r.Record, ...]:
        """The holder no longer needs the version."""
        raise NotImplementedError

    def releasable(self) -> tuple[int, ...]:
        """Announced versions that nothing needs: not kept, pinned, within the bound, or the newest checkpoint's."""
        raise NotImplementedError

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> tuple[r.Record, ...]:
        """Expire leases and silent replicas, form steps, end tickets and the job. Call often, and after each call."""
        raise NotImplementedError

    def set_live(self, name: str, value: int) -> tuple[r.Record, ...]:
        """Change what may change while the job runs: steps, replicas, target_policy_lag."""
        raise NotImplementedError

    # -- views ---------------------------------------------------------------------------------------------------

    def releasable_entries(self) -> tuple[tuple[str, ...], str | None]:
        """(entry ids that may be deleted from the stream now, id below which nothing is needed or None)."""
        raise NotImplementedError

    def entries_deleted(self, entry_ids: Iterable[str]) -> None:
        """The entries are gone; not durable (deleting again is harmless)."""
        raise NotImplementedError

    @property
    def checkpoint_wanted(self) -> bool:
        """The stream is over 70 % full."""
        raise NotImplementedError

    @property
    def outcome(self) -> r.JobEnded | None:
        """How the job ended, or None."""
        raise NotImplementedError

    def gauges(self) -> dict[str, float]:
        """What views and metrics show: tickets by state and end, out, k, lag of the tickets out, bytes, counters."""
        raise NotImplementedError
