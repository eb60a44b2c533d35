"""The interface of a reward inside its process, and the choice among the four types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from drumroll_rollout.rewards.setup import WorkerSetup

Score = tuple[float, dict[str, float]]
"""Reward and its named parts."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Completions to score; all lists have one entry per completion."""

    prompts: list[Any]
    """Text or messages, as in the data set."""
    completions: list[str]
    completion_ids: list[list[int]]
    inputs: list[dict[str, Any]]
    """PreparedDataset.reward_inputs of each prompt."""


class Reward(Protocol):
    """A loaded reward."""

    name: str
    keeps_processes: bool
    """Processes that it has started live on between calls."""

    def score(self, batch: Batch) -> Sequence[Score]:
        """One score per completion.

        Raises:
            RewardError: the user's function broke its contract. Any other exception is a crash of this call.
        """
        ...


def load_reward(setup: WorkerSetup) -> Reward:
    """Import what a reward needs; imports are late, so that a process holds its own reward's libraries alone.

    Raises:
        RewardError: the function or a library does not import.
    """
    if setup.type == "math":
        from drumroll_rollout.rewards.math import MathReward

        return MathReward()
    if setup.type == "exact":
        from drumroll_rollout.rewards.exact import ExactReward

        return ExactReward(setup.pattern)
    if setup.type == "tasks":
        from drumroll_rollout.rewards.tasks import TaskReward

        return TaskReward()
    from drumroll_rollout.rewards.function import FunctionReward

    assert setup.function is not None
    return FunctionReward.load(setup.function, source_dir=setup.source_dir)
