"""What a ticket in flight takes in the scheduler: the real policy's memory, counted by tracemalloc.

Every record goes through its journaled form, so that no two of them share a string by accident, as in the service.
"""

import hashlib
import tracemalloc
import uuid
from collections.abc import Iterator

from drumroll_planner import codec
from drumroll_planner import records as r
from drumroll_planner.policy import Policy
from drumroll_planner.rules import Rules
from drumroll_proto.v1 import journal_pb2

TICKETS = 2_000
REPLICAS = 64
HEARTBEATS = 4
"""Renewals of a lease whose places in the clock's queue are not passed yet: a term has three, and the first."""


def bytes_in_flight(rules: Rules, *, accepted: int) -> float:
    """Bytes a ticket with all samples leased and then so many of each group accepted.

    Replicas, with the weights that they attested, are there before and not counted.
    """
    policy = Policy(rules, incarnation=3)
    _apply(policy, _fleet(rules))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        _apply(policy, _leased(rules))
        for _ in range(HEARTBEATS):
            policy._clocks.now += rules.lease_term_s / 3
            for number, lease in enumerate(tuple(policy.state.leases)):
                policy._clocks.progress(lease, int(policy._clocks.now) * 40 + number)
        _apply(policy, _accepted(rules, accepted))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(policy.state.tickets) == TICKETS
    return (after - before) / TICKETS


def _apply(policy: Policy, records: Iterator[r.Record]) -> None:
    for record in records:
        data = codec.to_proto(record, time=0.0, incarnation=3).SerializeToString()
        policy.apply(codec.from_proto(journal_pb2.JournalRecord.FromString(data)))


def _replica(number: int) -> tuple[str, str]:
    return f"rollout-{number % REPLICAS}", uuid.UUID(int=number % REPLICAS).hex


def _fleet(rules: Rules) -> Iterator[r.Record]:
    for number in range(REPLICAS):
        name, instance = _replica(number)
        yield r.ReplicaJoined(replica=name, instance=instance, slots=TICKETS * rules.group_size)


def _leases(rules: Rules) -> Iterator[tuple[int, r.TicketId, int]]:
    for number in range(TICKETS * rules.group_size):
        yield number, r.TicketId(1, number // rules.group_size), number % rules.group_size


def _leased(rules: Rules) -> Iterator[r.Record]:
    for number, ticket, index in _leases(rules):
        if index == 0:
            yield r.Admitted(ticket=ticket, row=ticket.ordinal, predicted_tokens=900)
        name, instance = _replica(number)
        request = uuid.UUID(int=number).hex
        yield r.Leased(f"3-{number}", r.LeaseKind.TRAIN, ticket, index, 0, name, instance, 17, request)


def _accepted(rules: Rules, accepted: int) -> Iterator[r.Record]:
    for number, ticket, index in _leases(rules):
        if index < accepted:
            yield r.Accepted(
                lease_id=f"3-{number}",
                ticket=ticket,
                index=index,
                attempt=0,
                entry_id=f"17329999{number:05d}-0",
                sha256=hashlib.sha256(str(number).encode()).digest(),
                num_bytes=20_000 + number,
                oldest_version=17,
                newest_version=18,
                num_tokens=1_000 + number,
                reward=number / 7,
                finished=True,
            )
