"""Rewinds: going back to a checkpoint under a new lineage (section 8 of the protocol)."""

from collections.abc import Iterator

from drumroll_planner import records as r
from drumroll_planner.records import TicketId
from drumroll_planner.state import State
from drumroll_planner.tickets import Ticket


def checkpoint_version(state: State, step: int) -> int:
    """The version that the checkpoint before `step` holds."""
    for covered in state.checkpoints:
        if covered.step == step:
            return covered.version
    return state.version_of(step) if step >= state.base_step else 0


def can_rewind_to(state: State, step: int) -> bool:
    """Whether every ticket trained at `step` and later is still known."""
    if step >= state.covered_step:
        return True
    gone = range(step, state.covered_step)
    return all(number in state.covered_steps or number in state.steps for number in gone)


def rewind(state: State, step: int, reason: str, *, above: int = 0, lineage: int = 0) -> tuple[r.Record, ...]:
    """Facts of going back to the checkpoint before `step`, with the next version and lineage that nobody has used.

    `above` and `lineage`: the newest that the trainer has used, where the ledger may not know them. Samples,
    partials and leases that may hold tokens of the abandoned versions are given up.
    """
    kept = checkpoint_version(state, step)
    used = max([state.filling, above, *state.announced])
    rewound = r.Rewound(step=step, version=used + 1, lineage=max(state.lineage, lineage) + 1, reason=reason)
    abandoned_leases = tuple(_abandoned_leases(state, kept))
    return (*abandoned_leases, *_discards(state, step, kept), rewound)


def _abandoned_leases(state: State, kept: int) -> Iterator[r.Record]:
    for lease in state.leases.values():
        replica = state.replicas.get(lease.replica)
        attested = -1 if replica is None or replica.version is None else replica.version
        if max(lease.version, attested) > kept:
            yield r.Returned(lease.lease_id, lease.ticket, lease.index, r.ReturnReason.ABORTED, charged=False)


def _discards(state: State, step: int, kept: int) -> Iterator[r.Record]:
    for number, decided in state.steps.items():
        if number >= step:
            for member in decided.decision.tickets:
                for sample in member.samples:
                    yield r.Discarded(member.ticket, sample.index, "rewound", sample.num_tokens)
    for ticket in state.tickets.values():
        for index, held in enumerate(ticket.samples):
            accepted, partial = held.accepted, held.partial
            if accepted is not None and accepted.newest_version > kept:
                yield r.Discarded(ticket.id, index, "rewound", accepted.num_tokens)
            elif partial is not None and partial.newest_version > kept:
                yield r.Discarded(ticket.id, index, "rewound", partial.ref.num_tokens)


def rewind_state(state: State, record: r.Rewound, kept: int) -> list[tuple[TicketId, Ticket]]:
    """Take the decisions from `record.step` on back; their tickets are returned, to be planned again."""
    tickets: list[tuple[TicketId, Ticket]] = []
    for number in sorted(number for number in state.steps if number >= record.step):
        step = state.steps.pop(number)
        tickets += step.tickets.items()
        state.counters["decided"] -= len(step.decision.tickets)
        back = len(step.decision.tickets) - len(step.tickets)
        ended = [m for m in step.decision.tickets if m.ticket not in step.tickets]
        tickets += [(member.ticket, Ticket(member.ticket, member.row, 0, [])) for member in ended]
        state.counters["ended_covered"] -= back
    for number in sorted(number for number in state.covered_steps if number >= record.step):
        members = state.covered_steps.pop(number)
        tickets += [(ticket_id, Ticket(ticket_id, row, 0, [])) for ticket_id, row in members]
        state.counters["decided"] -= len(members)
        state.counters["ended_covered"] -= len(members)
    for ticket_id, _ in tickets:
        state.decided_in.pop(ticket_id, None)
    for number in [number for number in state.chains if number >= record.step]:
        del state.chains[number]
    state.checkpoints = [covered for covered in state.checkpoints if covered.step <= record.step]
    state.num_decided = state.num_trained = state.base_step = record.step
    state.base_version = record.version
    state.lineage = record.lineage
    state.abandoned = [*state.abandoned, (kept, record.version)]
    state.rewound = record
    return tickets
