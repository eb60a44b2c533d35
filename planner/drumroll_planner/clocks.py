"""Deadlines of leases and of silent replicas. Not durable: after a restart everything gets one full term."""

import heapq
from collections.abc import Mapping

from drumroll_planner.state import State

_SPARE = 64
"""Entries of ended leases that may stay besides."""


class Clocks:
    """A lease is renewed by its own progress alone; a replica by its heartbeats."""

    def __init__(self, term_s: float) -> None:
        self._term_s = term_s
        self.now = 0.0
        self._deadlines: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []
        """One entry a lease, no later than its deadline; looked at again only then."""
        self._tokens: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self._silent_at: list[tuple[float, str]] = []
        """One entry a replica, no later than when it is silent; looked at again only then."""

    def started(self, lease_id: str) -> None:
        """A lease begins, or gets a full term anew."""
        deadline = self.now + self._term_s
        if lease_id not in self._deadlines:
            heapq.heappush(self._due, (deadline, lease_id))
        self._deadlines[lease_id] = deadline

    def ended(self, lease_id: str) -> None:
        self._deadlines.pop(lease_id, None)
        self._tokens.pop(lease_id, None)
        if len(self._due) > 2 * len(self._deadlines) + _SPARE:
            self._due = [(deadline, each) for each, deadline in self._deadlines.items()]
            heapq.heapify(self._due)

    def progress(self, lease_id: str, tokens_done: int) -> None:
        """The replica says that it holds the lease and how far it is."""
        if tokens_done > self._tokens.get(lease_id, 0):
            self.started(lease_id)
        self._tokens[lease_id] = max(tokens_done, self._tokens.get(lease_id, 0))

    def acknowledged(self, lease_id: str) -> bool:
        """Whether the replica ever said that it holds the lease."""
        return lease_id in self._tokens

    def has_progress(self, lease_id: str) -> bool:
        return self._tokens.get(lease_id, 0) > 0

    def overdue(self, live: Mapping[str, object]) -> list[str]:
        """Live leases past their deadline, the longest first."""
        late: dict[str, float] = {}
        while self._due and self._due[0][0] <= self.now:
            _, lease_id = heapq.heappop(self._due)
            deadline = self._deadlines.get(lease_id)
            if deadline is None or lease_id in late:
                continue
            if deadline > self.now:
                heapq.heappush(self._due, (deadline, lease_id))
            elif lease_id in live:
                late[lease_id] = deadline
        ordered = sorted((deadline, lease_id) for lease_id, deadline in late.items())
        for entry in ordered:
            # They stay due until the fact that they expired is applied.
            heapq.heappush(self._due, entry)
        return [lease_id for _, lease_id in ordered]

    def heard(self, replica: str) -> None:
        if replica not in self._seen:
            heapq.heappush(self._silent_at, (self.now + self._term_s, replica))
        self._seen[replica] = self.now

    def silent(self, replicas: Mapping[str, object]) -> list[str]:
        """Replicas that have said nothing for a lease's term."""
        names = []
        while self._silent_at and self._silent_at[0][0] <= self.now:
            _, name = heapq.heappop(self._silent_at)
            if name not in replicas:
                del self._seen[name]
            elif self._seen[name] + self._term_s <= self.now:
                names.append(name)
            else:
                heapq.heappush(self._silent_at, (self._seen[name] + self._term_s, name))
        for name in names:
            # They stay silent until the fact that they left is applied.
            heapq.heappush(self._silent_at, (self.now, name))
        return names

    def restart(self, state: State) -> None:
        """Full terms for everything."""
        self._deadlines.clear()
        self._due.clear()
        self._tokens.clear()
        self._seen.clear()
        self._silent_at.clear()
        for replica in state.replicas:
            self.heard(replica)
        for lease_id in state.leases:
            self.started(lease_id)
