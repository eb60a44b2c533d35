"""What is simulated: a job's rules and plan, the true lengths of its answers, a fleet and its costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from drumroll.errors import UserError
from drumroll_planner.costs import CostModel
from drumroll_planner.rules import Plan, Rules

Routing = Literal["fewest", "step_time"]
"""A sample goes to the replica with the fewest samples, or to the one whose next decode step would be shortest."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica dies without a word; what it ran is lost."""

    at_s: float
    replica: int
    back_after_s: float | None = None
    """It registers again, as a new instance, this much later; None: never."""


@dataclass(frozen=True, slots=True)
class Join:
    """A further replica comes."""

    at_s: float
    costs: CostModel | None = None
    """None: those of the first replica."""


@dataclass(frozen=True, slots=True)
class SimJob:
    """See the module. Tickets are counted in dispatch order, over the passes if there are several."""

    rules: Rules
    plan: Plan | Sequence[Plan]
    """One pass, or several; where the job needs more tickets than they have, they begin anew."""
    lengths: npt.NDArray[np.int32]
    """True answer lengths in tokens [tickets, group size], in the order of the plan."""
    prompt_tokens: npt.NDArray[np.int32]
    """Length of each ticket's prompt [tickets], in the order of the plan."""
    costs: CostModel | Sequence[CostModel]
    """One for all replicas, or one for each; the trainer's figures are those of the first."""
    num_replicas: int = 1
    max_concurrent: int = 64
    """Sequences that a replica runs at a time."""
    chunk_tokens: int = 8192
    """Tokens of an engine step, decode and prefill together."""
    kv_tokens: int | None = None
    """KV capacity of a replica in tokens; None: never full."""
    share_prefix: bool = True
    publish_every: int = 1
    checkpoint_every: int = 10
    micro_batch: int | None = None
    """Samples of a padded micro-batch, cut from the step's samples sorted by length; None: packed, no padding."""
    routing: Routing = "fewest"
    """Of the fast mode; the policy routes as it does."""
    failures: tuple[Failure, ...] = ()
    joins: tuple[Join, ...] = ()
    notice_s: float = 0.0
    """From a version's announcement until a replica begins to load it: half a heartbeat, on average."""
    turnaround_s: float = 0.0
    """From an answer's last token until the scheduler has its report, journaled, and the place is filled again."""
    heartbeat_s: float | None = None
    """Time between heartbeats in policy mode; default: a third of the lease's term."""

    def __post_init__(self) -> None:
        if self.num_replicas < 1 or self.max_concurrent < 1:
            raise UserError(f"replicas {self.num_replicas} of {self.max_concurrent} samples: write 1 or more of each")
        if self.lengths.ndim != 2 or self.lengths.shape[1] != self.rules.group_size:
            raise UserError(f"lengths have shape {self.lengths.shape}; write [tickets, {self.rules.group_size}]")
        if len(self.lengths) == 0 or len(self.prompt_tokens) != len(self.lengths) or self.lengths.min() < 1:
            raise UserError("lengths and prompt_tokens need the same number of tickets, and answers of 1 token or more")
        if len(self.replica_costs) != self.num_replicas:
            raise UserError(
                f"{len(self.replica_costs)} cost models for {self.num_replicas} replicas: write one for each"
            )
        if (planned := sum(len(each) for each in self.passes)) != len(self.lengths):
            raise UserError(f"the plan has {planned} tickets and lengths {len(self.lengths)}: write one row a ticket")

    @property
    def passes(self) -> tuple[Plan, ...]:
        """The plans, one a pass."""
        return tuple(self.plan) if isinstance(self.plan, Sequence) else (self.plan,)

    @property
    def replica_costs(self) -> tuple[CostModel, ...]:
        """One for each replica of the start."""
        return (self.costs,) * self.num_replicas if isinstance(self.costs, CostModel) else tuple(self.costs)

    @property
    def trainer_costs(self) -> CostModel:
        return self.replica_costs[0]

    @property
    def num_tickets(self) -> int:
        """Tickets that the job trains."""
        if self.rules.steps is not None:
            return self.rules.steps * self.rules.prompts_per_step
        passes = self.passes
        return sum(len(passes[epoch % len(passes)]) for epoch in range(self.rules.epochs or 1))

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the job."""
        return -(-self.num_tickets // self.rules.prompts_per_step)
