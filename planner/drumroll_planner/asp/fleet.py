"""What a plan is made for: replicas, trainer, rules of the job."""

from dataclasses import dataclass, replace

from drumroll_planner.costs import CostModel
from drumroll_planner.rules import Rules


@dataclass(frozen=True, slots=True)
class FleetModel:
    """Replicas and trainer as the planner sees them."""

    costs: tuple[CostModel, ...]
    """One for each replica; the trainer's figures are those of the first."""
    max_concurrent: int = 64
    kv_tokens: int | None = None
    chunk_tokens: int = 8192
    publish_every: int = 1
    checkpoint_every: int = 10
    micro_batch: int | None = None
    """Samples of a padded micro-batch; None: packed."""

    @property
    def num_replicas(self) -> int:
        return len(self.costs)

    def resized(self, num_replicas: int) -> "FleetModel":
        """The same with more or fewer replicas of the kinds that there are."""
        return replace(self, costs=tuple(self.costs[place % len(self.costs)] for place in range(num_replicas)))


@dataclass(frozen=True, slots=True)
class Choosing:
    """How the planner chooses."""

    threshold: float = 0.08
    """Predicted gain in time for which it departs from first come: below it, order does more harm than good."""
    target_slack: float = 0.02
    """A smaller target lag may cost this much time."""
    longest_cycle: int = 16
    """Steps after which the trained prompts must be representative again; 1: never reorder."""
    free_target: bool = False
    """The job leaves its target lag to the planner."""
    num_futures: int = 3
    budget_samples: int = 240_000
    """Samples to simulate in all, at most; about 40 microseconds each."""

    def targets(self, rules: Rules) -> tuple[int, ...]:
        """Target lags to compare, descending, the job's own or default among them."""
        bound, own = rules.max_policy_lag, rules.target_policy_lag
        if not self.free_target or bound == 0:
            return (own,)
        return tuple(sorted({bound, own, (bound + own + 1) // 2, max(1, own // 2)} - {0}, reverse=True))
