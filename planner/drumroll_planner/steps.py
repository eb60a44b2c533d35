"""Forming steps: when the next step is decided, and from which tickets."""

from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_planner.lag import may_leave
from drumroll_planner.state import State
from drumroll_planner.tickets import Ticket

_AHEAD = 1
"""Steps that may be decided beyond the one that the trainer trains."""


def decide(state: State) -> tuple[r.Record, ...]:
    """The decision of the next step, with the drops that it makes necessary; () while it cannot be taken.

    A step takes complete tickets, the oldest version first. Under `wait` it waits until it need not leave anything
    behind that no later step could take; under `drop` those end when everything else is there; under `mask` it goes
    on without them.
    """
    if state.no_more_steps or state.num_decided > state.trained_through + _AHEAD or state.outcome is not None:
        return ()
    floor = state.window.floor
    dropped = _droppable(state, floor) if state.rules.lag_policy == "drop" else []
    places = state.free_places
    if state.num_steps is None:
        places = min(places, state.unadmitted + len(state.tickets) - len(dropped))
    if not places or len(state.ready) < places or _must_wait(state, floor, places):
        return ()
    chosen = _in_order(state)[:places]
    if state.rules.lag_policy == "wait" and not _leaves_enough_room(state, chosen):
        return ()
    return (*drop(dropped, f"older than {floor} when step {state.num_decided} was full"), _decision(state, chosen))


def _in_order(state: State) -> list[Ticket]:
    tickets = [state.tickets[ticket_id] for ticket_id in state.ready]
    if state.rules.order == "completion":
        return sorted(tickets, key=lambda ticket: (ticket.version, ticket.completed_at))
    return sorted(tickets, key=lambda ticket: (ticket.version, ticket.id))


def _must_wait(state: State, floor: int, places: int) -> bool:
    """Whether a ticket that no later step can take is still incomplete: the common case, seen without sorting."""
    if state.rules.lag_policy != "wait" or not any(version <= floor for version in state.incomplete):
        return False
    return sum(count for version, count in state.out.items() if version <= floor) <= places


def _leaves_enough_room(state: State, chosen: list[Ticket]) -> bool:
    """Whether what this step leaves behind can be trained before it is too old."""
    taken = [ticket.version for ticket in chosen if ticket.version is not None]
    left = dict(state.out)
    for version in taken:
        left[version] -= 1
    return may_leave(state.window, left, max(taken))


def _droppable(state: State, floor: int) -> list[Ticket]:
    if not any(version <= floor for version in state.incomplete):
        return []
    return [t for t in state.tickets.values() if not t.complete and t.version is not None and t.version <= floor]


def give_back(ticket: Ticket, detail: str = "") -> list[r.Record]:
    """Take the ticket's live leases back, uncharged."""
    aborted = r.ReturnReason.ABORTED
    return [r.Returned(le.lease_id, ticket.id, le.index, aborted, False, detail=detail) for le in ticket.leases()]


def drop(tickets: list[Ticket], reason: str) -> list[r.Record]:
    """End tickets as dropped."""
    if not tickets:
        return []
    ended = tuple(r.EndedTicket(ticket.id, ticket.num_tokens) for ticket in tickets)
    returned = [record for ticket in tickets for record in give_back(ticket, "dropped")]
    return [*returned, r.Ended(r.TicketEnd.DROPPED, reason, ended)]


def _decision(state: State, chosen: list[Ticket]) -> r.Decided:
    step = state.num_decided
    decided = r.Decided(
        step=step,
        version=state.filling,
        lineage=state.lineage,
        tickets=tuple(r.DecidedTicket(ticket.id, ticket.row, _samples(ticket)) for ticket in chosen),
        mask_below=max(0, state.window.floor),
        chain="",
    )
    return with_chain(decided, state.chain_before(step) or "")


def _samples(ticket: Ticket) -> tuple[r.DecidedSample, ...]:
    return tuple(
        r.DecidedSample(a.index, a.attempt, a.entry_id, a.sha256, a.oldest_version, a.num_tokens)
        for sample in ticket.samples
        if (a := sample.accepted) is not None
    )


def with_chain(decided: r.Decided, previous: str) -> r.Decided:
    """The decision with its chain digest filled in."""
    return r.Decided(
        step=decided.step,
        version=decided.version,
        lineage=decided.lineage,
        tickets=decided.tickets,
        mask_below=decided.mask_below,
        chain=chain_digest(previous, decided),
    )
