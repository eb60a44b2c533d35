"""What the policy is told by replicas, and what it answers: frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from drumroll_planner import records as r


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
    held_until: float | None = None
    """Unix seconds until which the replica keeps exactly `version` for this lease; None: any admissible version."""


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
