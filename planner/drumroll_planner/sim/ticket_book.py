"""Tickets and steps by the policy's rules, without its records: who may be admitted, and what a step takes.

The lag rule is the policy's own (`lag` is imported, not copied). What is dropped is stopped by the dispatcher.
"""

from abc import ABC, abstractmethod
from bisect import insort

from drumroll_planner.lag import LagWindow, may_lease, may_leave
from drumroll_planner.sim.dispatcher import Chosen
from drumroll_planner.sim.job import SimJob
from drumroll_planner.sim.recorder import Recorder


class SimTicket:
    """An admitted, undecided ticket."""

    __slots__ = ("floors", "missing", "ordinal", "replicas", "returned", "version", "waiting")

    def __init__(self, ordinal: int, size: int) -> None:
        self.ordinal = ordinal
        self.version: int | None = None
        """Of its oldest token that exists or may come."""
        self.floors: list[int | None] = [None] * size
        self.missing = size
        self.returned = False
        """Samples of it came back."""
        self.waiting = list(range(size - 1, -1, -1))
        """Samples to be leased, the next one last."""
        self.replicas: set[int] = set()


class TicketBook(ABC):
    """See the module. Baselines override `_order`, `_free_places` or `_allowed`."""

    def __init__(self, job: SimJob, recorder: Recorder) -> None:
        self._rules = job.rules
        self._recorder = recorder
        self._total = job.num_tickets
        self._num_steps = job.num_steps
        self._next = 0
        self._replaced = 0
        """Dropped tickets whose places are filled again."""
        self._tickets: dict[int, SimTicket] = {}
        self._ready: list[tuple[int, int, SimTicket]] = []
        """Complete, in the order in which steps take them."""
        self._out: dict[int, int] = {}
        self._num_out = 0
        self._completions = 0
        self._decided: list[Chosen] = []
        self._num_trained = 0
        self._newest = 0
        """The newest version that is announced."""
        self._window = self._make_window()

    @property
    def finished(self) -> bool:
        """All steps are trained."""
        return self._num_trained >= self._num_steps or (self._over and self._num_trained == len(self._decided))

    def trained(self, now: float, step: int, *, covers: bool) -> None:
        """The trainer has committed a step."""
        self._num_trained = step + 1
        self._window = self._make_window()
        self._decide()

    def next_step(self, now: float, step: int) -> Chosen | None:
        """The tickets of a step, once they are decided."""
        if self._rules.lag_policy == "drop":
            # Who was leased meanwhile may be too old for the step that waits.
            self._decide()
        if step >= len(self._decided):
            return None
        self._recorder.queue(now, len(self._ready))
        return self._decided[step]

    def _complete(self, ticket: SimTicket) -> None:
        """All samples of a ticket are there."""
        self._completions += 1
        assert ticket.version is not None
        insort(self._ready, (ticket.version, self._order(ticket), ticket), key=lambda entry: entry[:2])
        self._decide()

    @abstractmethod
    def _abort(self, ticket: SimTicket) -> None:
        """End a ticket that is not trained; what runs of it is stopped."""

    @property
    def _unadmitted(self) -> int:
        return self._total + self._replaced - self._next

    @property
    def _over(self) -> bool:
        if self._rules.steps is not None:
            return len(self._decided) >= self._rules.steps
        return not self._tickets and self._unadmitted <= 0

    def _free_places(self) -> int:
        if self._rules.steps is None:
            return min(self._rules.prompts_per_step, self._unadmitted + len(self._tickets))
        return self._rules.prompts_per_step

    def _make_window(self) -> LagWindow:
        rules = self._rules
        return LagWindow(
            version=len(self._decided),
            bound=rules.max_policy_lag,
            target=rules.target_policy_lag,
            free=self._free_places(),
            per_step=rules.prompts_per_step,
            pending=len(self._decided) - self._num_trained,
        )

    def _order(self, ticket: SimTicket) -> int:
        """Among equally old tickets, which a step takes first."""
        return self._completions if self._rules.order == "completion" else ticket.ordinal

    def _decide(self) -> None:
        """Form steps, at most one ahead of the one that trains."""
        while not self._over and len(self._decided) <= self._num_trained + 1 and self._decide_one():
            pass

    def _decide_one(self) -> bool:
        rules, window = self._rules, self._window
        dropped = self._droppable() if rules.lag_policy == "drop" else []
        places = window.free
        if rules.steps is None:
            places = min(places, self._unadmitted + len(self._tickets) - len(dropped))
        if not places or len(self._ready) < places:
            return False
        chosen = self._ready[:places]
        if rules.lag_policy == "wait":
            left = dict(self._out)
            for version, _, _ in chosen:
                left[version] -= 1
            if not may_leave(window, left, chosen[-1][0]):
                return False
        for ticket in dropped:
            self._drop(ticket)
        del self._ready[:places]
        for version, _, ticket in chosen:
            self._leave(ticket, version)
        self._decided.append([(ticket.ordinal, version) for version, _, ticket in chosen])
        self._window = self._make_window()
        return True

    def _leave(self, ticket: SimTicket, version: int) -> None:
        del self._tickets[ticket.ordinal]
        self._out[version] -= 1
        self._num_out -= 1

    def _droppable(self) -> list[SimTicket]:
        floor = self._window.floor
        return [t for t in self._tickets.values() if t.missing and t.version is not None and t.version <= floor]

    def _drop(self, ticket: SimTicket) -> None:
        self._abort(ticket)
        self._recorder.num_dropped += 1
        if self._rules.steps is not None:
            self._replaced += 1

    def _allowed(self, bucket: int | None, version: int) -> bool:
        """Rules (a), (b) and (c): see `lag`."""
        return may_lease(self._window, self._out, self._num_out, origin=bucket, to=version, newest=self._newest)

    def _move(self, ticket: SimTicket, version: int | None) -> None:
        if ticket.version is not None:
            self._out[ticket.version] -= 1
            self._num_out -= 1
        if version is not None:
            self._out[version] = self._out.get(version, 0) + 1
            self._num_out += 1
        ticket.version = version
