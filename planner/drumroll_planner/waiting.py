"""Replicas that wait for work, the least loaded first. Not durable: a waiting call ends with its scheduler."""

import heapq
from dataclasses import dataclass

from drumroll_planner.state import State


@dataclass(frozen=True, slots=True)
class Ask:
    """A replica that waits for work."""

    free_slots: int
    request_id: str


class WaitingReplicas:
    """Replicas that ask for work, by attested version, the least loaded (fewest live leases, then by name) first."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.asks: dict[str, Ask] = {}
        self._groups: dict[int | None, list[tuple[int, str]]] = {}

    def add(self, replica: str, ask: Ask) -> None:
        self.asks[replica] = ask
        self.moved(replica)

    def remove(self, replica: str) -> None:
        self.asks.pop(replica, None)

    def moved(self, replica: str) -> None:
        """The replica's load or version may have changed: note where it stands now."""
        known = self._state.replicas.get(replica)
        if known is not None and replica in self.asks:
            heapq.heappush(self._groups.setdefault(known.version, []), (len(known.leases), replica))

    def versions(self) -> list[int | None]:
        """Versions that waiting replicas attest."""
        for version in list(self._groups):
            self.least_loaded(version)
        return list(self._groups)

    def least_loaded(self, version: int | None) -> tuple[int, str] | None:
        group = self._groups.get(version, [])
        while group and not self.stands(group[0], version):
            _, stale = heapq.heappop(group)
            self.moved(stale)
        if not group:
            self._groups.pop(version, None)
            return None
        return group[0]

    def stands(self, entry: tuple[int, str], version: int | None) -> bool:
        """Whether an entry still says how its replica stands."""
        load, name = entry
        replica = self._state.replicas.get(name)
        return name in self.asks and replica is not None and (len(replica.leases), replica.version) == (load, version)

    def of_version(self, version: int | None) -> list[str]:
        names = {name for load, name in self._groups.get(version, []) if self.stands((load, name), version)}
        return sorted(names)
