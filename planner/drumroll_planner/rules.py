"""What the policy is told: the rules of a job, and the plan of a pass."""

from dataclasses import dataclass
from typing import Literal, Protocol

LagPolicy = Literal["wait", "drop", "mask"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy needs to know of a job; immutable but for what `LiveSet` may change."""

    num_prompts: int
    group_size: int
    prompts_per_step: int
    max_policy_lag: int
    target_policy_lag: int
    lag_policy: LagPolicy
    steps: int | None
    epochs: int | None
    """Exactly one of steps and epochs is set."""
    max_attempts: int
    max_failed_tickets: float
    lease_term_s: float
    dynamic_sampling: bool
    max_sampling_tries: int
    order: Literal["plan", "completion"]
    """Which of equally old complete tickets a step takes first."""
    max_stream_bytes: int
    """Admission stops at 85 % of this, a checkpoint is asked for at 70 %."""
    keep_versions: int
    max_bad_samples_in_a_row: int = 3
    """A replica that sends this many bad samples in a row is taken out of service."""
    keep_checkpoints: int = 3
    """How many checkpoints back the job can still go when newer ones turn out to be damaged."""


class Plan(Protocol):
    """One pass: which row stands at each ordinal, and what is predicted of it."""

    @property
    def epoch(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def planner(self) -> str: ...

    def __len__(self) -> int: ...

    def row(self, ordinal: int) -> int:
        """Row of the prepared data set."""
        ...

    def predicted_tokens(self, ordinal: int) -> int:
        """Expected length of one answer in tokens; 0 where unknown."""
        ...
