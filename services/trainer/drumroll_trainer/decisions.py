"""Decisions of the scheduler: between the wire's form and the records that the planner also uses."""

from drumroll_planner import records as r
from drumroll_planner.codec import fill_message, read_message
from drumroll_proto.v1 import journal_pb2


def from_wire(message: journal_pb2.Decided) -> r.Decided:
    """The record of a message."""
    return read_message(r.Decided, message)


def to_wire(decision: r.Decided) -> journal_pb2.Decided:
    """The message of a record."""
    message = journal_pb2.Decided()
    fill_message(message, decision)
    return message


def sample_keys(decision: r.Decided) -> list[tuple[r.TicketId, r.DecidedSample]]:
    """All samples of a decision, in its order: the order of everything that is made of them."""
    return [(ticket.ticket, sample) for ticket in decision.tickets for sample in ticket.samples]
