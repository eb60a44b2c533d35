"""How fast replicas decode, learned from their heartbeats, and what one more sample would cost on each.

Every running sequence gets one token a step, so the time of a step is the time between two heartbeats over the tokens
that a sequence made in it. All replicas together give the form of the step time, 1 + growth * b with b sequences; each
has a factor against it. A sample goes where the predicted step time after adding it is smallest:

    score = factor * (1 + growth * (load + 1))

Factors near 1 count as 1, and both numbers move in steps: equal replicas are balanced by load alone, whatever the
noise, and the heaps that hold scores stay valid between steps. Not durable: it is learned anew within a minute.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_KEEP = 0.97
"""What a replica's own sums keep with each heartbeat: about the last thirty count."""
_KEEP_ALL = 0.999
_ENOUGH = 8.0
"""Heartbeats before a replica's factor is believed."""
_SAME = 1.12
"""Factors below this count as 1."""
_STEP = 1.15
_LEAST_GROWTH, _MOST_GROWTH = 1e-4, 1.0


@dataclass(slots=True)
class _Known:
    instance: str
    heard_at: float
    held: dict[str, int]
    weight: float = 0.0
    running: float = 0.0
    """Mean number of sequences at heartbeats."""
    log_step: float = 0.0
    """Mean log of the step time."""


@dataclass(slots=True)
class Speeds:
    """See the module."""

    growth: float = 0.05
    _known: dict[str, _Known] = field(default_factory=dict)
    _factors: dict[str, float] = field(default_factory=dict)
    _weight: float = 0.0
    _spread: float = 1e-9
    """Sums over all replicas of squared differences from their own mean load, and of its product with step time's."""
    _product: float = 0.0
    _surplus: float = 0.0
    """Sum of 1 / factor - 1: by how many typical replicas the fleet is more than its number."""
    _running: float = 0.0
    _log_base: float = 0.0
    """Means over all heartbeats: sequences, and log step time without any sequence."""

    def heard(self, now: float, replica: str, instance: str, held: Mapping[str, int]) -> None:
        """A heartbeat: leases held, with their tokens."""
        known = self._known.get(replica)
        if known is None or known.instance != instance:
            self._known[replica] = _Known(instance, now, dict(held))
            self._set(replica, 1.0)
            return
        passed = now - known.heard_at
        made = sorted(done - known.held[lease] for lease, done in held.items() if done > known.held.get(lease, done))
        known.heard_at, known.held = now, dict(held)
        if passed > 0 and made:
            self._learn(replica, known, len(made), math.log(passed / made[len(made) // 2]))

    def _learn(self, replica: str, known: _Known, running: int, log_step: float) -> None:
        if known.weight:
            # Within a replica only: slow ones hold more sequences, which says nothing of what a sequence costs.
            apart = running - known.running
            self._spread = self._spread * _KEEP_ALL + apart * apart
            self._product = self._product * _KEEP_ALL + apart * (math.exp(log_step - known.log_step) - 1.0)
        known.weight = known.weight * _KEEP + 1.0
        known.running += (running - known.running) / known.weight
        known.log_step += (log_step - known.log_step) / known.weight
        # The common figures look back as far in time as each replica's own, however many replicas there are.
        self._weight = self._weight * (1.0 - (1.0 - _KEEP) / len(self._known)) + 1.0
        self._running += (running - self._running) / self._weight
        self._grow()
        base = self._base(known)
        self._log_base += (base - self._log_base) / self._weight
        if known.weight >= _ENOUGH and self._weight >= 2 * _ENOUGH:
            self._publish(replica, math.exp(base - self._log_base))

    def _grow(self) -> None:
        """Publish the growth of step time where it is well away from what is published."""
        if self._weight < 2 * _ENOUGH or self._spread < self._weight:
            return
        slope = max(0.0, self._product / self._spread)
        growth = min(max(slope / max(1.0 - slope * self._running, 0.05), _LEAST_GROWTH), _MOST_GROWTH)
        if max(growth / self.growth, self.growth / growth) > 2.0:
            self.growth = growth
            bases = [self._base(known) for known in self._known.values() if known.weight]
            self._log_base = sum(bases) / len(bases)

    def _base(self, known: _Known) -> float:
        """Log step time of a replica without any sequence."""
        return known.log_step - math.log1p(self.growth * known.running)

    def _publish(self, replica: str, factor: float) -> None:
        before = self._factors.get(replica, 1.0)
        if max(factor / before, before / factor) > _STEP:
            self._set(replica, 1.0 if 1 / _SAME < factor < _SAME else factor)

    def _set(self, replica: str, factor: float) -> None:
        self._surplus += 1.0 / factor - 1.0 / self._factors.pop(replica, 1.0)
        if factor != 1.0:
            self._factors[replica] = factor

    def forget(self, replica: str) -> None:
        """The replica is gone."""
        self._known.pop(replica, None)
        self._set(replica, 1.0)

    def factor(self, replica: str) -> float:
        """Step time against the fleet's at the same load; 1 until it is known to differ."""
        return self._factors.get(replica, 1.0)

    def score(self, replica: str, load: int) -> float:
        """What one more sample would make of the replica's step time; the smallest gets it."""
        return self._factors.get(replica, 1.0) * (1.0 + self.growth * (load + 1))

    def level(self, num_replicas: int, num_samples: int) -> float:
        """The score that all replicas would have, with so many samples shared out by score, one more for each."""
        if not num_replicas:
            return math.inf
        typical = max(num_replicas + self._surplus, 1e-9)
        return (self.growth * (num_samples + num_replicas) + num_replicas) / typical

    def step_time(self) -> tuple[float, float] | None:
        """(seconds of a step without sequences, seconds of each) of a typical replica; None while unknown."""
        if self._weight < 2 * _ENOUGH:
            return None
        base = math.exp(self._log_base)
        return base, base * self.growth
