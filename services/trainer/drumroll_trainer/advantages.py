"""Group-relative advantages. Pure.

A group whose rewards are equal but for rounding has no signal: its advantages are exactly 0, never noise divided by
noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RELATIVE_NOISE = 1e-6
"""A spread below this, in units of the largest reward (at least 1), is rounding: float32 rewards carry 1e-7."""


@dataclass(frozen=True, slots=True, eq=False)
class Advantages:
    """One value per sample, in the order given, and what happened to the groups."""

    values: NDArray[np.float64]
    num_groups: int
    num_without_variance: int


def group_advantages(
    rewards: Sequence[float], groups: Sequence[int], *, norm: Literal["std", "none"] = "std"
) -> Advantages:
    """Reward minus the mean of its group, divided by the group's population standard deviation (norm "std").

    Population, not sample: [1, 0, 0, 1] gives magnitudes of 1.0. `groups[i]` names the group of `rewards[i]`.
    """
    reward_values = np.asarray(rewards, dtype=np.float64)
    group_ids = np.asarray(groups, dtype=np.int64)
    if reward_values.shape != group_ids.shape or reward_values.ndim != 1:
        raise ValueError(f"{reward_values.size} rewards for {group_ids.size} groups")
    if not np.isfinite(reward_values).all():
        raise ValueError("a reward is not a finite number")
    values = np.zeros_like(reward_values)
    flat = 0
    distinct = np.unique(group_ids)
    for group in distinct:
        members = group_ids == group
        centred = _centred(reward_values[members])
        if centred is None:
            flat += 1
        else:
            values[members] = centred / centred.std() if norm == "std" else centred
    return Advantages(values, len(distinct), flat)


def _centred(rewards: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Rewards minus their mean; None where they are equal but for rounding."""
    scale = max(1.0, float(np.abs(rewards).max()))
    if float(rewards.max() - rewards.min()) <= RELATIVE_NOISE * scale:
        return None
    centred: NDArray[np.float64] = rewards - rewards.mean()
    return centred
