"""What the plan needs of a spec, in plain values: the one place where its fields are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from drumroll.api.spec import RestartPolicy, RLJobSpec
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


def wanted(spec: RLJobSpec) -> Wanted:
    """Read a spec."""
    rollouts = spec.rollout.replicas
    success, failure = spec.cleanup.on_success, spec.cleanup.on_failure
    live = {"replicas": rollouts}
    live |= {"steps": spec.steps} if spec.steps is not None else {}
    live |= {"target_policy_lag": spec.target_policy_lag} if spec.target_policy_lag is not None else {}
    return Wanted(
        suspend=spec.suspend,
        store=not spec.stream.url,
        rollouts=rollouts,
        min_rollouts=min(spec.rollout.min_replicas or 1, rollouts),
        trainers=spec.trainer.replicas,
        budgets={
            "rollout": _budget(spec.rollout.restart_policy),
            "trainer": _budget(spec.trainer.restart_policy),
            "scheduler": _budget(spec.scheduler.restart_policy),
        },
        pending_s=spec.pending_deadline_seconds,
        active_s=spec.active_deadline_seconds,
        stall_s=spec.stall_deadline_seconds,
        on_success=Keep(success.pods_seconds, success.store_seconds, success.job_seconds),
        on_failure=Keep(failure.pods_seconds, failure.store_seconds, failure.job_seconds),
        live=live,
        lag_allowed=max(spec.max_policy_lag, spec.weights.publish_every_steps),
    )


def _budget(policy: RestartPolicy) -> Budget:
    return Budget(policy.max_restarts, policy.window_seconds)
