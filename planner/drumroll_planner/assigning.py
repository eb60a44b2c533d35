"""One assignment: samples to waiting replicas, one by one, each to the one where it costs least."""

import heapq
from collections.abc import Callable, Mapping

from drumroll_planner import records as r
from drumroll_planner.answers import Assignment, LeaseGrant
from drumroll_planner.leasing import Assigner, Draft
from drumroll_planner.rules import Plan
from drumroll_planner.state import State
from drumroll_planner.tickets import RETURNED, Lease
from drumroll_planner.waiting import WaitingReplicas


def grant_of(state: State, lease: Lease) -> LeaseGrant:
    """What a replica is told of a live lease."""
    ticket = state.tickets[lease.ticket]
    partial = ticket.samples[lease.index].partial
    return LeaseGrant(
        lease_id=lease.lease_id,
        kind=lease.kind,
        ticket=lease.ticket,
        row=ticket.row,
        index=lease.index,
        attempt=lease.attempt,
        version=lease.version,
        partial=None if partial is None else partial.ref,
        predicted_tokens=ticket.predicted_tokens,
    )


class Loads:
    """Load and free slots of waiting replicas as they will be once this assignment is applied.

    A replica's first sample ends its ask: its reply is due.
    """

    def __init__(self, state: State, waiting: WaitingReplicas) -> None:
        self._state = state
        self._waiting = waiting
        self._given: dict[int | None, list[tuple[float, str]]] = {}
        self._load: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self.request_ids: dict[str, str] = {}

    def least(self, version: int | None) -> tuple[float, str] | None:
        """(score, replica) of the cheapest replica of `version` that has a slot left."""
        given = self._given.get(version, [])
        while given and (self._score(given[0][1]) != given[0][0] or not self._left[given[0][1]]):
            heapq.heappop(given)
        untouched = self._waiting.least_loaded(version)
        return min((entry for entry in (untouched, given[0] if given else None) if entry is not None), default=None)

    def sibling(self, draft: Draft, version: int, score: float) -> str | None:
        """A replica with this score that runs the ticket's prompt already."""
        names = (name for name in draft.replicas if self._may_take(name, version, score))
        return min(names, default=None)

    def _may_take(self, name: str, version: int, score: float) -> bool:
        if name in self._load:
            return self._score(name) == score and self._left[name] > 0 and self._state.replicas[name].version == version
        return self._waiting.stands((score, name), version)

    def _score(self, name: str) -> float:
        return self._waiting.speeds.score(name, self._load[name])

    def take(self, name: str, version: int) -> None:
        """The replica gets one more sample."""
        if name not in self._load:
            ask = self._waiting.asks.pop(name)
            self._load[name] = len(self._state.replicas[name].leases)
            self._left[name] = ask.free_slots
            self.request_ids[name] = ask.request_id
        self._load[name] += 1
        self._left[name] -= 1
        heapq.heappush(self._given.setdefault(version, []), (self._score(name), name))


class Assigning:
    """Gives out samples while anything may be given; collects records and grants."""

    def __init__(
        self, state: State, plans: Mapping[int, Plan], waiting: WaitingReplicas, lease_id: Callable[[], str]
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._lease_id = lease_id
        self._assigner = Assigner(state, plans)
        self._loads = Loads(state, waiting)
        self._records: list[r.Record] = []
        self._grants: dict[str, list[LeaseGrant]] = {}

    def run(self) -> Assignment:
        versions = self._waiting.versions()
        level = self._waiting.level(self._assigner.num_samples)
        while heads := [(*head, version) for version in versions if (head := self._loads.least(version))]:
            score, name, version = min(heads, key=lambda head: head[:2])
            draft = self._assigner.pick(version)
            if draft is None or version is None or (score > level and draft.key[0] != RETURNED):
                versions.remove(version)
                continue
            self._give(draft, version, self._loads.sibling(draft, version, score) or name)
        update_first = self._outdated()
        self._assigner.close()
        grants = {name: tuple(grants) for name, grants in self._grants.items()}
        return Assignment(tuple(self._records), grants, update_first)

    def _give(self, draft: Draft, version: int, name: str) -> None:
        if draft.new:
            self._records.append(r.Admitted(draft.ticket, draft.row, draft.predicted_tokens))
        index = self._assigner.take(draft, version)
        self._loads.take(name, version)
        draft.replicas.add(name)
        ticket = self._state.tickets.get(draft.ticket)
        sample = None if ticket is None else ticket.samples[index]
        grant = LeaseGrant(
            lease_id=self._lease_id(),
            kind=r.LeaseKind.TRAIN,
            ticket=draft.ticket,
            row=draft.row,
            index=index,
            attempt=0 if sample is None else sample.attempts,
            version=version,
            partial=None if sample is None or sample.partial is None else sample.partial.ref,
            predicted_tokens=draft.predicted_tokens,
        )
        self._grants.setdefault(name, []).append(grant)
        self._records.append(
            r.Leased(
                lease_id=grant.lease_id,
                kind=grant.kind,
                ticket=grant.ticket,
                index=index,
                attempt=grant.attempt,
                replica=name,
                instance=self._state.replicas[name].instance,
                version=version,
                request_id=self._loads.request_ids[name],
            )
        )

    def _outdated(self) -> frozenset[str]:
        """Replicas that got nothing, while one with the newest weights could work."""
        newest = self._state.newest_version
        if newest is None or self._assigner.pick(newest) is None:
            return frozenset()
        old = [version for version in self._waiting.versions() if version != newest]
        return frozenset(name for version in old for name in self._waiting.of_version(version))
