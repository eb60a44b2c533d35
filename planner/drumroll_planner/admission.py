"""Admission: whether one more ticket of the plan may go out. Everything that holds work back acts here."""

from collections.abc import Mapping

from drumroll_planner.records import TicketId
from drumroll_planner.rules import Plan
from drumroll_planner.state import State

_BYTES_PER_TOKEN = 12.0
"""Of a sample, before any was seen: an id, a log-probability, a mask, and what stands around them."""
_UNKNOWN_TOKENS = 512.0
"""Length of an answer, before any was seen."""
_ADMISSION_STOPS = 0.85
_CHECKPOINT_WANTED = 0.70


def expected_bytes(state: State, *, tokens: float, unknown: float) -> float:
    """Bytes of answers of `tokens` tokens in all, and of `unknown` answers of unknown length."""
    counters = state.counters
    answers, seen = counters["accepted"], counters["accepted_tokens"]
    per_token = counters["accepted_bytes"] / seen if seen else _BYTES_PER_TOKEN
    mean = seen / answers if answers else _UNKNOWN_TOKENS
    return per_token * (tokens + unknown * mean)


def reserved_bytes(state: State) -> float:
    """Predicted bytes of the answers that are still to come for tickets that are out."""
    return expected_bytes(state, tokens=state.awaited_tokens, unknown=state.awaited_unknown)


def checkpoint_wanted(state: State) -> bool:
    """The stream is over 70 % full."""
    return state.entries.num_bytes >= _CHECKPOINT_WANTED * state.rules.max_stream_bytes


class Admission:
    """Goes through the plans behind the state's cursor without moving it; one object per assignment."""

    def __init__(self, state: State, plans: Mapping[int, Plan]) -> None:
        self._state = state
        self._plans = plans
        self._next = state.cursor
        self._admitted = 0
        self._reserved = reserved_bytes(state)

    def next(self) -> tuple[TicketId, int, int] | None:
        """(ticket, row, predicted tokens) of the next ticket, or None where nothing may be admitted now."""
        state = self._state
        places = state.places - self._admitted
        if places <= 0 or state.no_more_steps:
            return None
        while self._next in state.ahead:
            self._next = self._after(self._next)
        epoch, ordinal = self._next
        plan = self._plans.get(epoch)
        if plan is None or epoch not in state.passes:
            return None
        if ordinal + 1 == len(plan) and places > 1 and not self._is_planned(epoch + 1):
            return None
        if not self._fits(plan.predicted_tokens(ordinal)):
            return None
        return self._next, plan.row(ordinal), plan.predicted_tokens(ordinal)

    def take(self, predicted_tokens: int) -> None:
        """The ticket that `next` gave is admitted."""
        self._admitted += 1
        self._reserved += self._ticket_bytes(predicted_tokens)
        self._next = self._after(self._next)

    def _is_planned(self, epoch: int) -> bool:
        epochs = self._state.rules.epochs
        return (epochs is not None and epoch >= epochs) or (epoch in self._state.passes and epoch in self._plans)

    def _after(self, ticket: TicketId) -> TicketId:
        epoch, ordinal = ticket
        return TicketId(epoch + 1, 0) if ordinal + 1 >= self._state.pass_length(epoch) else TicketId(epoch, ordinal + 1)

    def _ticket_bytes(self, predicted_tokens: int) -> float:
        size = self._state.rules.group_size
        return expected_bytes(self._state, tokens=size * predicted_tokens, unknown=0 if predicted_tokens else size)

    def _fits(self, predicted_tokens: int) -> bool:
        """Back-pressure. The step after the one in training always fits, or full and waiting would be for ever."""
        state = self._state
        out = len(state.tickets) + self._admitted
        if state.num_decided <= state.trained_through + 1 and out < state.free_places:
            return True
        expected = state.entries.num_bytes + self._reserved + self._ticket_bytes(predicted_tokens)
        return expected <= _ADMISSION_STOPS * state.rules.max_stream_bytes


def needed_plan(state: State, plans: Mapping[int, Plan]) -> int | None:
    """The epoch whose plan is needed next: this pass's, or the next one's once a step's worth of this is left."""
    if state.outcome is not None or state.no_more_steps or state.places <= 0:
        return None
    epoch, ordinal = state.cursor
    if epoch not in plans or epoch not in state.passes:
        return None if state.rules.epochs is not None and epoch >= state.rules.epochs else epoch
    left = state.pass_length(epoch) - ordinal
    if left > state.rules.prompts_per_step or (epoch + 1 in plans and epoch + 1 in state.passes):
        return None
    if state.rules.epochs is not None:
        return epoch + 1 if epoch + 1 < state.rules.epochs else None
    return epoch + 1 if state.places >= left else None
