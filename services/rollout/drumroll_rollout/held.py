"""The samples that a replica holds under leases, and their progress.

A lease is renewed by its own progress. Progress is the number of tokens made, plus one for each heartbeat in which the
sample is in a stage that has a deadline of its own (waiting for a reward, for the store, for a weight load): a hung
generation shows none, a slow grader does.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from drumroll_planner.records import LeaseKind, TicketId
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll_rollout.episode import StageName
from drumroll_rollout.payloads import Draft
from drumroll_rollout.transcript import Transcript

_REMEMBERED = 4096
"""Leases that are over; a late reply that still names them starts nothing."""

KINDS = {common_pb2.LEASE_KIND_TRAIN: LeaseKind.TRAIN, common_pb2.LEASE_KIND_EVAL: LeaseKind.EVAL}
"""The kinds of leases that this release knows."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One sample of one lease."""

    lease_id: str
    kind: LeaseKind
    ticket: TicketId
    row: int
    index: int
    attempt: int
    predicted_tokens: int
    partial: common_pb2.EntryRef | None
    exactly: int | None
    """The only version that may generate it, or None."""
    until: float
    """Unix seconds until which `exactly` holds."""

    @property
    def request_id(self) -> str:
        return f"{self.lease_id}/{self.index}"

    @property
    def sample_id(self) -> common_pb2.SampleId:
        ticket = common_pb2.TicketId(epoch=self.ticket.epoch, ordinal=self.ticket.ordinal)
        return common_pb2.SampleId(ticket=ticket, index=self.index, attempt=self.attempt)

    def __str__(self) -> str:
        return f"ticket ({self.ticket.epoch}, {self.ticket.ordinal}) sample {self.index} attempt {self.attempt}"


def assignments(grant: pb.LeaseGrant) -> list[Assignment]:
    """The samples of a grant; its kind must be one of `KINDS`."""
    return [
        Assignment(
            lease_id=grant.lease_id,
            kind=KINDS[grant.kind],
            ticket=TicketId(grant.ticket.epoch, grant.ticket.ordinal),
            row=grant.row,
            index=slot.index,
            attempt=slot.attempt,
            predicted_tokens=grant.predicted_tokens,
            partial=slot.partial if slot.HasField("partial") else None,
            exactly=grant.constraint.version if grant.constraint.exactly else None,
            until=grant.constraint.until,
        )
        for slot in grant.samples
    ]


@dataclass(eq=False, slots=True)
class HeldSample:
    """A sample in this replica's hands."""

    assignment: Assignment
    stage: StageName = StageName.ACQUIRE
    stage_since: float = 0.0
    """Monotonic seconds."""
    transcript: Transcript = field(default_factory=Transcript)
    draft: Draft | None = None
    """Set once it has begun."""
    earlier_tokens: int = 0
    """Tokens made by others before."""
    ticks: int = 0
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    settling: bool = False
    """Its report or hand-back is on the way; the verdict decides what became of it."""
    settled: bool = False
    """Its tokens were reported or handed back, or the scheduler does not want them."""
    task: asyncio.Task[None] | None = None

    @property
    def progress(self) -> int:
        return self.earlier_tokens + len(self.transcript) + self.ticks


class HeldSamples:
    """All of them, by lease."""

    def __init__(self) -> None:
        self._samples: dict[str, HeldSample] = {}
        self._over: deque[str] = deque(maxlen=_REMEMBERED)

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[HeldSample]:
        return iter(list(self._samples.values()))

    def knows(self, lease_id: str) -> bool:
        """Whether the lease is held, or was."""
        return lease_id in self._over or any(held.assignment.lease_id == lease_id for held in self)

    def add(self, held: HeldSample) -> None:
        self._samples[held.assignment.request_id] = held

    def remove(self, held: HeldSample) -> None:
        """The sample is over, whatever came of it."""
        if self._samples.pop(held.assignment.request_id, None) is not None:
            self._over.append(held.assignment.lease_id)

    def of_lease(self, lease_id: str) -> list[HeldSample]:
        return [held for held in self if held.assignment.lease_id == lease_id]

    @property
    def generating(self) -> int:
        """Samples that have or wait for a place in the engine."""
        return sum(held.stage in (StageName.ACQUIRE, StageName.RUN) for held in self)

    def progress(self, *, weights_updating: bool) -> dict[str, int]:
        """Progress by lease, for one heartbeat; counts the heartbeat where that is progress."""
        by_lease: dict[str, int] = {}
        for held in self:
            if weights_updating or held.stage is not StageName.RUN:
                held.ticks += 1
            lease_id = held.assignment.lease_id
            by_lease[lease_id] = by_lease.get(lease_id, 0) + held.progress
        return by_lease

    def version_held_until(self) -> float | None:
        """Unix seconds until which an evaluation needs the loaded version, or None."""
        return max((held.assignment.until for held in self if held.assignment.exactly is not None), default=None)
