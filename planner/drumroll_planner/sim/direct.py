"""The policy's rules at the level of tickets, without its records: the fast mode, for choosing among plans.

Admission, lag rule, choice of steps and routing are those of the policy (`lag` is imported, not copied); what it leaves
out is what a healthy fleet never meets: heartbeats, expiry, attempts, back-pressure of the stream, filtered groups. A
test holds both modes together.
"""

import heapq
from math import inf

from drumroll_planner.sim.fleet import Fleet
from drumroll_planner.sim.request import Request
from drumroll_planner.sim.ticket_book import SimTicket, TicketBook

_RETURNED, _FRESH = 0, 1
_FULL = inf
_TYPICAL = 64
"""Sequences at which replicas' speeds are compared."""


class DirectDispatcher(TicketBook):
    """See the module. Baselines override `_score` or `_candidate`."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.job, fleet.recorder)
        self.fleet = fleet
        self._step_time = fleet.job.routing == "step_time"
        self._scores: list[float] = []
        """By replica: smallest is next; infinite where nothing may be sent."""
        self._loads: list[int] = []
        self._versions: list[int] = []
        self._running: list[dict[Request, tuple[SimTicket, int]]] = []
        self._alive: list[bool] = []
        self._queue: list[tuple[int, int, SimTicket]] = []
        """(rank, ordinal, ticket): samples wait to be leased."""
        self._lost: list[tuple[float, int]] = []

    # -- what the fleet tells ------------------------------------------------------------------------------------

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
            self._complete(ticket)

    def attested(self, now: float, replica: int, version: int) -> None:
        self._versions[replica] = version
        self._rescore(replica)

    def announced(self, now: float, version: int) -> None:
        self._newest = version

    # -- leases --------------------------------------------------------------------------------------------------

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

    def dispatch(self, now: float) -> None:
        if self._rules.lag_policy == "drop":
            self._decide()
        scores, shares = self._scores, self._shares()
        closed: set[int] = set()
        """Versions for whose replicas there is nothing."""
        while True:
            replica = self._least(closed) if closed else scores.index(min(scores))
            if replica is None or scores[replica] == _FULL:
                return
            version = self._versions[replica]
            ticket = self._candidate(version)
            full = shares is not None and self._loads[replica] > shares[replica]
            if ticket is None or (full and not ticket.returned):
                closed.add(version)
                if closed.issuperset(self._versions):
                    return
                continue
            self._lease(ticket, self._sibling(ticket, replica, version), version)

    def _shares(self) -> list[float] | None:
        """Samples that each replica may have, where some are still to load the newest version: `waiting.level`."""
        known = [place for place, alive in enumerate(self._alive) if alive]
        if all(self._versions[place] >= self._newest for place in known):
            return None
        places = min(self._window.credit - self._num_out, self._unadmitted)
        samples = sum(self._loads) + (max(0, places) + 1) * self._rules.group_size
        if not self._step_time:
            return [samples / len(known)] * len(self._alive)
        speeds = [1.0 / self.fleet.replicas[place].costs.base(_TYPICAL) for place in range(len(self._alive))]
        whole = sum(speeds[place] for place in known)
        return [samples * speed / whole for speed in speeds]

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

    def _give_up(self, replica: int) -> None:
        """What the replica ran comes back to the head of the queue."""
        for ticket, index in self._running[replica].values():
            if ticket.ordinal not in self._tickets:
                continue
            ticket.floors[index] = None
            ticket.waiting.append(index)
            ticket.replicas.discard(replica)
            self._move(ticket, min((floor for floor in ticket.floors if floor is not None), default=None))
            ticket.returned = True
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
