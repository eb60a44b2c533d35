"""The durable state as JSON, and back. A format change raises `FORMAT`; other formats are refused by number."""

import base64
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from drumroll_planner import records as r
from drumroll_planner.codec import record_from_json, record_to_json
from drumroll_planner.records import TicketId
from drumroll_planner.rules import Rules
from drumroll_planner.state import State
from drumroll_planner.tickets import DecidedStep, Kept, Lease, Replica, Sample, Ticket

FORMAT = 1

T = TypeVar("T")


def snapshot(state: State) -> dict[str, Any]:
    """JSON-able; equal states give equal snapshots."""
    return {
        "format": FORMAT,
        "opened": _optional(state.opened),
        "passes": [record_to_json(record) for _, record in sorted(state.passes.items())],
        "cursor": list(state.cursor),
        "ahead": sorted(list(ticket) for ticket in state.ahead),
        "tickets": [_ticket(ticket) for _, ticket in sorted(state.tickets.items())],
        "leases": [_lease(lease) for lease in state.leases.values()],
        "replicas": [
            [each.name, each.instance, each.slots, each.version, each.bad_in_a_row]
            for _, each in sorted(state.replicas.items())
        ],
        "banned": dict(sorted(state.banned.items())),
        "steps": [
            [record_to_json(step.decision), [_ticket(ticket) for ticket in step.tickets.values()]]
            for _, step in sorted(state.steps.items())
        ],
        "covered_steps": [
            [number, [[*ticket, row] for ticket, row in members]]
            for number, members in sorted(state.covered_steps.items())
        ],
        "chains": [[step, chain] for step, chain in sorted(state.chains.items())],
        "checkpoints": [record_to_json(record) for record in state.checkpoints],
        "abandoned": [list(pair) for pair in state.abandoned],
        "rewound": _optional(state.rewound),
        "announced": [record_to_json(record) for _, record in sorted(state.announced.items())],
        "retired": sorted(state.retired),
        "pins": sorted(list(pin) for pin in state.pins),
        "live": dict(sorted(state.live.items())),
        "counters": {name: count for name, count in sorted(state.counters.items()) if count},
        "failures": list(state.failures),
        "newest_entry": state.entries.newest,
        "lengths": _pack(state.lengths),
        "outcome": _optional(state.outcome),
        **{name: getattr(state, name) for name in _NUMBERS},
    }


_NUMBERS = (
    "num_decided",
    "num_trained",
    "base_step",
    "base_version",
    "lineage",
    "trainer_epoch",
    "trainer_step",
    "completions",
    "filtered_in_a_row",
)


def restore(rules: Rules, data: Mapping[str, Any]) -> State:
    """The state that `snapshot` was taken of; indexes are made anew under `rules`.

    Raises:
        ValueError: another format.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"ledger snapshot has format {data.get('format')!r}; this version reads {FORMAT}")
    state = State(rules)
    for name in _NUMBERS:
        setattr(state, name, data[name])
    _restore_facts(state, data)
    state.cursor = TicketId(*data["cursor"])
    state.ahead = {TicketId(*ticket) for ticket in data["ahead"]}
    state.banned = dict(data["banned"])
    state.chains = dict(data["chains"])
    state.abandoned = [(low, high) for low, high in data["abandoned"]]
    state.retired = set(data["retired"])
    state.pins = {(holder, version) for holder, version in data["pins"]}
    state.live = dict(data["live"])
    state.counters = Counter(data["counters"])
    state.failures = list(data["failures"])
    state.lengths = _unpack(data["lengths"], rules.num_prompts)
    state.covered_steps = {
        number: tuple((TicketId(epoch, ordinal), row) for epoch, ordinal, row in members)
        for number, members in data["covered_steps"]
    }
    for name, instance, slots, version, bad in data["replicas"]:
        state.replicas[name] = Replica(name, instance, slots, version, bad)
        if bad >= rules.max_bad_samples_in_a_row:
            state.offenders.add(name)
    _restore_tickets(state, data)
    return state


def _restore_facts(state: State, data: Mapping[str, Any]) -> None:
    state.opened = _record(r.JobOpened, data["opened"])
    state.rewound = _record(r.Rewound, data["rewound"])
    state.outcome = _record(r.JobEnded, data["outcome"])
    state.passes = {record.epoch: record for record in _records(r.PassPlanned, data["passes"])}
    state.checkpoints = _records(r.Covered, data["checkpoints"])
    state.announced = {record.version: record for record in _records(r.Announced, data["announced"])}


def _restore_tickets(state: State, data: Mapping[str, Any]) -> None:
    tickets = [_unticket(state, ticket) for ticket in data["tickets"]]
    state.tickets = {ticket.id: ticket for ticket in tickets}
    for values in data["leases"]:
        lease = _unlease(values)
        state.add_lease(state.tickets[lease.ticket].samples[lease.index], lease)
    for ticket in tickets:
        state.index(ticket)
    for decision, members in data["steps"]:
        step = DecidedStep(record_from_json(r.Decided, decision), {})
        for member in members:
            ticket = _unticket(state, member)
            step.tickets[ticket.id] = ticket
            state.decided_in[ticket.id] = step.decision.step
        state.steps[step.decision.step] = step
    state.entries.newest = data["newest_entry"]


def _optional(record: r.Record | None) -> Any:
    return None if record is None else record_to_json(record)


def _record(kind: type[T], data: Any) -> T | None:
    return None if data is None else record_from_json(kind, data)


def _records(kind: type[T], data: Sequence[Any]) -> list[T]:
    return [record_from_json(kind, item) for item in data]


def _ticket(ticket: Ticket) -> list[Any]:
    samples = [
        [
            sample.attempts,
            sample.returned,
            None if sample.partial is None else [record_to_json(sample.partial.ref), sample.partial.newest_version],
            None if sample.accepted is None else record_to_json(sample.accepted),
        ]
        for sample in ticket.samples
    ]
    return [*ticket.id, ticket.row, ticket.predicted_tokens, ticket.completed_at, ticket.trouble, samples]


def _unticket(state: State, data: Sequence[Any]) -> Ticket:
    epoch, ordinal, row, predicted, completed_at, trouble, values = data
    samples = []
    for attempts, returned, partial, accepted in values:
        sample = Sample(attempts, returned)
        if partial is not None:
            sample.partial = Kept(record_from_json(r.PartialRef, partial[0]), partial[1])
            state.entries.need(sample.partial.ref.entry_id, sample.partial.ref.num_bytes)
        if accepted is not None:
            sample.accepted = record_from_json(r.Accepted, accepted)
            state.entries.need(sample.accepted.entry_id, sample.accepted.num_bytes)
        samples.append(sample)
    return Ticket(TicketId(epoch, ordinal), row, predicted, samples, completed_at, trouble)


def _lease(lease: Lease) -> list[Any]:
    values = [getattr(lease, each.name) for each in fields(Lease)]
    return [list(value) if isinstance(value, TicketId) else value for value in values]


def _unlease(data: Sequence[Any]) -> Lease:
    lease_id, kind, ticket, *others = data
    return Lease(lease_id, r.LeaseKind(kind), TicketId(*ticket), *others)


def _pack(lengths: npt.NDArray[np.float32]) -> str:
    """Base64 of the compressed little-endian float32 array; "" where no length is known yet."""
    if np.isnan(lengths).all():
        return ""
    return base64.b64encode(zlib.compress(lengths.astype("<f4").tobytes(), 1)).decode()


def _unpack(data: str, num_prompts: int) -> npt.NDArray[np.float32]:
    lengths = np.full(num_prompts, np.nan, dtype=np.float32)
    if data:
        kept = np.frombuffer(zlib.decompress(base64.b64decode(data)), dtype="<f4")[:num_prompts]
        lengths[: len(kept)] = kept
    return lengths
