"""Replicas that wait for work, cheapest first. Not durable: a waiting call ends with its scheduler."""

import heapq
import math
from dataclasses import dataclass

from drumroll_planner.speeds import Speeds
from drumroll_planner.state import State


@dataclass(frozen=True, slots=True)
class Ask:
    """A replica that waits for work."""

    free_slots: int
    request_id: str


class WaitingReplicas:
    """Replicas that ask for work, by attested version; first those with the smallest step time after one more sample.

    Replicas of equal speed stand in order of their live leases, then by name.
    """

    def __init__(self, state: State, speeds: Speeds) -> None:
        self._state = state
        self.speeds = speeds
        self.asks: dict[str, Ask] = {}
        self._groups: dict[int | None, list[tuple[float, str]]] = {}
        self._some_load: bool | None = None

    def add(self, replica: str, ask: Ask) -> None:
        self.asks[replica] = ask
        self.moved(replica)

    def remove(self, replica: str) -> None:
        self.asks.pop(replica, None)

    def moved(self, replica: str) -> None:
        """The replica's load or version may have changed: note where it stands now."""
        known = self._state.replicas.get(replica)
        if known is not None and replica in self.asks:
            score = self.speeds.score(replica, len(known.leases))
            heapq.heappush(self._groups.setdefault(known.version, []), (score, replica))

    def fleet_changed(self) -> None:
        """Replicas came, went or attested, or a version was announced."""
        self._some_load = None

    @property
    def some_load(self) -> bool:
        """Whether any replica is still to load the newest version."""
        if self._some_load is None:
            newest = self._state.newest_version or 0
            self._some_load = any((each.version or 0) < newest for each in self._state.replicas.values())
        return self._some_load

    def level(self, num_samples: int) -> float:
        """The score above which a replica would take what is the share of those that still load.

        Places open when a version is announced, and the first to have it would take them all.
        """
        if not self.some_load:
            return math.inf
        return self.speeds.level(len(self._state.replicas), len(self._state.leases) + num_samples)

    def versions(self) -> list[int | None]:
        """Versions that waiting replicas attest."""
        for version in list(self._groups):
            self.least_loaded(version)
        return list(self._groups)

    def least_loaded(self, version: int | None) -> tuple[float, str] | None:
        """(score, replica) of the cheapest of a version."""
        group = self._groups.get(version, [])
        while group and not self.stands(group[0], version):
            _, stale = heapq.heappop(group)
            self.moved(stale)
        if not group:
            self._groups.pop(version, None)
            return None
        return group[0]

    def stands(self, entry: tuple[float, str], version: int | None) -> bool:
        """Whether an entry still says how its replica stands."""
        score, name = entry
        replica = self._state.replicas.get(name)
        if name not in self.asks or replica is None or replica.version != version:
            return False
        return self.speeds.score(name, len(replica.leases)) == score

    def of_version(self, version: int | None) -> list[str]:
        names = {entry[1] for entry in self._groups.get(version, []) if self.stands(entry, version)}
        return sorted(names)
