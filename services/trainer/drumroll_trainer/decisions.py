"""Decisions of the scheduler: between the wire's form and the records that the planner also uses."""

from drumroll_planner import records as r
from drumroll_proto.v1 import common_pb2, journal_pb2


def from_wire(message: journal_pb2.Decided) -> r.Decided:
    """The record of a message."""
    return r.Decided(
        step=message.step,
        version=message.version,
        lineage=message.lineage,
        tickets=tuple(
            r.DecidedTicket(
                ticket=r.TicketId(ticket.ticket.epoch, ticket.ticket.ordinal),
                row=ticket.row,
                samples=tuple(
                    r.DecidedSample(
                        index=sample.index,
                        attempt=sample.attempt,
                        entry_id=sample.entry_id,
                        sha256=sample.sha256,
                        oldest_version=sample.oldest_version,
                        num_tokens=sample.num_tokens,
                    )
                    for sample in ticket.samples
                ),
            )
            for ticket in message.tickets
        ),
        mask_below=message.mask_below,
        chain=message.chain,
    )


def to_wire(decision: r.Decided) -> journal_pb2.Decided:
    """The message of a record."""
    message = journal_pb2.Decided(
        step=decision.step,
        version=decision.version,
        lineage=decision.lineage,
        mask_below=decision.mask_below,
        chain=decision.chain,
    )
    for ticket in decision.tickets:
        added = message.tickets.add(ticket=common_pb2.TicketId(**ticket.ticket._asdict()), row=ticket.row)
        for sample in ticket.samples:
            added.samples.add(
                index=sample.index,
                attempt=sample.attempt,
                entry_id=sample.entry_id,
                sha256=sample.sha256,
                oldest_version=sample.oldest_version,
                num_tokens=sample.num_tokens,
            )
    return message


def sample_keys(decision: r.Decided) -> list[tuple[r.TicketId, r.DecidedSample]]:
    """All samples of a decision, in its order: the order of everything that is made of them."""
    return [(ticket.ticket, sample) for ticket in decision.tickets for sample in ticket.samples]
