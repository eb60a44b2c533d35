"""The policy's rules at the level of tickets, without its records: the fast mode, for choosing among plans.

Admission, lag rule, choice of steps and routing are those of the policy (`lag` is imported, not copied); what it leaves
out is what a healthy fleet never meets: heartbeats, expiry, attempts, back-pressure of the stream, filtered groups. A
test holds both modes together.
"""

import heapq
from bisect import insort
from math import inf

from drumroll_planner.lag import LagWindow, has_credit, may_leave, may_move
from drumroll_planner.sim.engine import Request
from drumroll_planner.sim.fleet import Chosen, Fleet

_RETURNED, _FRESH = 0, 1
_FULL = inf


class SimTicket:
    """An admitted, undecided ticket."""

    __slots__ = ("floors", "missing", "ordinal", "replicas", "version", "waiting")

    def __init__(self, ordinal: int, size: int) -> None:
        self.ordinal = ordinal
        self.version: int | None = None
        """Of its oldest token that exists or may come."""
        self.floors: list[int | None] = [None] * size
        self.missing = size
        self.waiting = list(range(size - 1, -1, -1))
        """Samples to be leased, the next one last."""
        self.replicas: set[int] = set()


class DirectDispatcher:
    """See the module. Baselines override `_score`, `_candidate` or `_order`."""

    def __init__(self, fleet: Fleet) -> None:
        job = fleet.job
        self.fleet = fleet
        self._rules = job.rules
        self._total = job.num_tickets
        self._num_steps = job.num_steps
        self._step_time = job.routing == "step_time"
        self._scores: list[float] = []
        """By replica: smallest is next; infinite where nothing may be sent."""
        self._loads: list[int] = []
        self._versions: list[int] = []
        self._running: list[dict[Request, tuple[SimTicket, int]]] = []
        self._alive: list[bool] = []
        self._next = 0
        self._replaced = 0
        """Dropped tickets whose places are filled again."""
        self._tickets: dict[int, SimTicket] = {}
        self._queue: list[tuple[int, int, SimTicket]] = []
        """(rank, ordinal, ticket): samples wait to be leased."""
        self._ready: list[tuple[int, int, SimTicket]] = []
        """Complete, in the order in which steps take them."""
        self._out: dict[int, int] = {}
        self._num_out = 0
        self._completions = 0
        self._decided: list[Chosen] = []
        self._num_trained = 0
        self._places_decided = 0
        self._lost: list[tuple[float, int]] = []
        self._window = self._make_window()

    # -- what the fleet tells ------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._num_trained >= self._num_steps or (self._over and self._num_trained == len(self._decided))

    def joined(self, now: float, replica: int) -> None:
        if replica == len(self._loads):
            self._loads.append(0)
            self._scores.append(0.0)
            self._versions.append(self.fleet.version)
            self._running.append({})
            self._alive.append(True)
        else:
            self._give_up(replica)
            self._alive[replica] = True
            self._versions[replica] = self.fleet.version
        self._rescore(replica)

    def failed(self, now: float, replica: int) -> None:
        self._alive[replica] = False
        self._scores[replica] = _FULL
        heapq.heappush(self._lost, (now + self._rules.lease_term_s, replica))

    def timer(self, now: float) -> float | None:
        """Looks for replicas that have been silent for a lease's term."""
        while self._lost and self._lost[0][0] <= now:
            _, replica = heapq.heappop(self._lost)
            if not self._alive[replica]:
                self._give_up(replica)
        if not self.fleet.job.failures:
            return None
        return now + self._rules.lease_term_s / 10

    def done(self, now: float, replica: int, request: Request) -> None:
        ticket, _ = self._running[replica].pop(request)
        self._loads[replica] -= 1
        self._rescore(replica)
        ticket.missing -= 1
        if not ticket.missing:
            self._completions += 1
            assert ticket.version is not None
            insort(self._ready, (ticket.version, self._order(ticket), ticket), key=lambda entry: entry[:2])
            self._decide()

    def attested(self, now: float, replica: int, version: int) -> None:
        self._versions[replica] = version
        self._rescore(replica)

    def announced(self, now: float, version: int) -> None:
        pass

    def next_step(self, now: float, step: int) -> Chosen | None:
        if self._rules.lag_policy == "drop":
            # Who was leased meanwhile may be too old for the step that waits.
            self._decide()
        if step >= len(self._decided):
            return None
        self.fleet.recorder.queue(now, len(self._ready))
        return self._decided[step]

    def trained(self, now: float, step: int, *, covers: bool) -> None:
        self._num_trained = step + 1
        self._window = self._make_window()
        self._decide()

    # -- steps ---------------------------------------------------------------------------------------------------

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
        self.fleet.recorder.num_dropped += 1
        if self._rules.steps is not None:
            self._replaced += 1

    def _abort(self, ticket: SimTicket) -> None:
        """End a ticket that is not trained; what runs of it is stopped."""
        if ticket.version is None:
            del self._tickets[ticket.ordinal]
        else:
            self._leave(ticket, ticket.version)
        for replica, running in enumerate(self._running):
            for request in [request for request, (owner, _) in running.items() if owner is ticket]:
                del running[request]
                if self._alive[replica]:
                    self.fleet.abort(replica, request)
                    self._loads[replica] -= 1
                    self._rescore(replica)
        ticket.waiting.clear()

    # -- leases --------------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> None:
        if self._rules.lag_policy == "drop":
            self._decide()
        scores = self._scores
        closed: set[int] = set()
        """Versions for whose replicas there is nothing."""
        while True:
            replica = self._least(closed) if closed else scores.index(min(scores))
            if replica is None or scores[replica] == _FULL:
                return
            version = self._versions[replica]
            ticket = self._candidate(version)
            if ticket is None:
                closed.add(version)
                if closed.issuperset(self._versions):
                    return
                continue
            self._lease(ticket, self._sibling(ticket, replica, version), version)

    def _least(self, closed: set[int]) -> int | None:
        scores, versions = self._scores, self._versions
        return min(
            (replica for replica, version in enumerate(versions) if version not in closed),
            key=lambda replica: scores[replica],
            default=None,
        )

    def _sibling(self, ticket: SimTicket, replica: int, version: int) -> int:
        """Of equally good replicas, one that runs the prompt already."""
        score = self._scores[replica]
        same = [r for r in ticket.replicas if self._scores[r] == score and self._versions[r] == version]
        return min(same) if same else replica

    def _candidate(self, version: int) -> SimTicket | None:
        """The first ticket in the queue that a replica of this version may work on."""
        if version < self._window.floor:
            return None
        queue, passed = self._queue, []
        found = None
        while queue:
            _, _, ticket = queue[0]
            if not ticket.waiting:
                heapq.heappop(queue)
                continue
            if self._allowed(ticket.version, version):
                found = ticket
                break
            passed.append(heapq.heappop(queue))
        for entry in passed:
            heapq.heappush(queue, entry)
        if found is None and self._unadmitted > 0 and self._admit_next() and self._allowed(None, version):
            found = self._admit()
        return found

    def _admit_next(self) -> bool:
        """Whether a further ticket may begin, the lag rule aside."""
        return True

    def _admit(self) -> SimTicket:
        self._next += 1
        return self._enqueue(self._next - 1)

    def _enqueue(self, ordinal: int) -> SimTicket:
        ticket = self._tickets[ordinal] = SimTicket(ordinal, self._rules.group_size)
        heapq.heappush(self._queue, (_FRESH, ordinal, ticket))
        return ticket

    def _allowed(self, bucket: int | None, version: int) -> bool:
        """Rules (a), (b) and (c): see `lag`."""
        if bucket is None:
            if not has_credit(self._window, self._num_out):
                return False
        elif bucket <= version:
            return True
        return may_move(self._window, self._out, origin=bucket, to=version)

    def _lease(self, ticket: SimTicket, replica: int, version: int) -> None:
        index = ticket.waiting.pop()
        ticket.floors[index] = version
        if ticket.version is None or version < ticket.version:
            self._move(ticket, version)
        ordinal = ticket.ordinal
        request = self.fleet.send(replica, ordinal, index, (ordinal, index), group=(ordinal, version))
        self._running[replica][request] = (ticket, index)
        ticket.replicas.add(replica)
        self._loads[replica] += 1
        self.fleet.recorder.num_leases += 1
        self._rescore(replica)

    def _move(self, ticket: SimTicket, version: int | None) -> None:
        if ticket.version is not None:
            self._out[ticket.version] -= 1
            self._num_out -= 1
        if version is not None:
            self._out[version] = self._out.get(version, 0) + 1
            self._num_out += 1
        ticket.version = version

    def _give_up(self, replica: int) -> None:
        """What the replica ran comes back to the head of the queue."""
        for ticket, index in self._running[replica].values():
            if ticket.ordinal not in self._tickets:
                continue
            ticket.floors[index] = None
            ticket.waiting.append(index)
            ticket.replicas.discard(replica)
            self._move(ticket, min((floor for floor in ticket.floors if floor is not None), default=None))
            heapq.heappush(self._queue, (_RETURNED, ticket.ordinal, ticket))
            self.fleet.recorder.num_returned += 1
        self._running[replica].clear()
        self._loads[replica] = 0

    def _rescore(self, replica: int) -> None:
        load = self._loads[replica]
        if not self._alive[replica] or load >= self.fleet.job.max_concurrent:
            self._scores[replica] = _FULL
        else:
            self._scores[replica] = self._score(replica, load)

    def _score(self, replica: int, load: int) -> float:
        """What a replica would be with one sample more; the smallest gets it."""
        if not self._step_time:
            return load
        known = self.fleet.replicas[replica]
        return known.costs.decode(load + 1, known.engine.kv_tokens)
