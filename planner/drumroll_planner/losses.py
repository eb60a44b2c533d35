"""What to give up when entries of the sample stream are gone: pure, over the policy's state.

Only undecided tickets: whether a decision's samples are needed any more is for the trainer to say, who may have read
them already.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from drumroll_planner import records as r
from drumroll_planner.state import State

ENTRY_GONE = "its entry is gone"


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry that an undecided ticket counts on."""

    ticket: r.TicketId
    index: int
    entry_id: str
    sha256: bytes
    num_tokens: int
    partial: bool
    """Tokens of an unfinished sample, not an accepted one."""


def held_entries(state: State) -> tuple[HeldEntry, ...]:
    """All entries that undecided tickets count on."""
    return tuple(_held(state))


def losses(state: State, missing: Collection[str]) -> tuple[r.Record, ...]:
    """Facts of giving up the samples and partials whose entry ids are `missing`."""
    return tuple(
        r.Discarded(held.ticket, held.index, ENTRY_GONE, held.num_tokens)
        for held in _held(state)
        if held.entry_id in missing
    )


def _held(state: State) -> Iterator[HeldEntry]:
    for ticket in state.tickets.values():
        for index, sample in enumerate(ticket.samples):
            if sample.accepted is not None:
                one = sample.accepted
                yield HeldEntry(ticket.id, index, one.entry_id, one.sha256, one.num_tokens, partial=False)
            elif sample.partial is not None:
                ref = sample.partial.ref
                yield HeldEntry(ticket.id, index, ref.entry_id, ref.sha256, ref.num_tokens, partial=True)
