"""What the plan needs of a spec, in plain values: the one place where its fields are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from drumroll_operator.substrate import Role


@dataclass(frozen=True, slots=True)
class Budget:
    """A role's restartPolicy."""

    max_restarts: int = 10
    """Charged ends that are borne within the window (rollouts: times replicas)."""
    window_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays after the end for how long, in seconds."""

    pods_s: float = 3600.0
    """Objects of pods that have ended, for their logs."""
    store_s: float = 0.0
    job_s: float | None = None
    """The RLJob itself; None: for ever."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A spec's decisions."""

    suspend: bool = False
    store: bool = True
    """It has a store of its own."""
    rollouts: int = 1
    min_rollouts: int = 1
    trainers: int = 1
    budgets: Mapping[Role, Budget] = field(default_factory=dict)
    pending_s: float | None = None
    active_s: float | None = None
    stall_s: float | None = None
    on_success: Keep = Keep()
    on_failure: Keep = Keep(pods_s=86_400.0, store_s=3600.0)
    live: Mapping[str, int] = field(default_factory=dict)
    """Live values that the scheduler must work with."""
    lag_allowed: int = 1
    """Versions that a ready replica may be behind the newest announced one."""

    def budget(self, role: Role) -> Budget:
        """The role's, or the default one."""
        return self.budgets.get(role, _DEFAULT)

    def borne(self, role: Role) -> int:
        """Charged ends within the window that do not end the job."""
        return self.budget(role).max_restarts * (self.rollouts if role == "rollout" else 1)


_DEFAULT = Budget()
