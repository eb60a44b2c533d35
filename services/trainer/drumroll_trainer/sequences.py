"""What the trainer needs of a sample's sequences, as plain arrays, and what they are one step's worth of.

Masks come from lengths and from the sample's own loss mask; ids are never compared with a pad or end id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TrainSequence:
    """One prompt and its completion of C tokens."""

    group: int
    """Place of the sample's ticket in the decision."""
    sample: int
    """Place of the sample in the decision; sequences of one sample share it."""
    prompt_length: int
    token_ids: NDArray[np.int32]
    """[prompt_length + C]"""
    loss_mask: NDArray[np.bool_]
    """[C], True where the policy wrote the token."""
    logprobs: NDArray[np.float32]
    """[C], of the distribution that was sampled from."""
    versions: NDArray[np.int64]
    """[C], the weights that wrote each token."""
    temperature: float
    reward: float
    finished: bool
    """False where the completion was cut at its token limit."""

    @property
    def num_tokens(self) -> int:
        """Prompt and completion."""
        return int(self.token_ids.size)

    @property
    def num_completion_tokens(self) -> int:
        """C."""
        return self.num_tokens - self.prompt_length

    def trained(self, *, mask_below: int) -> NDArray[np.bool_]:
        """[C]: which tokens enter the loss; none of a version below `mask_below`."""
        result: NDArray[np.bool_] = self.loss_mask & (self.versions >= mask_below)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class StepSequences:
    """All sequences of one decided step, in the decision's order."""

    sequences: tuple[TrainSequence, ...]
    version: int
    """The version that the trainer holds."""
    mask_below: int

    @property
    def sample_rewards(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Group and reward of each sample; the reward is that of its last sequence."""
        last = {sequence.sample: sequence for sequence in self.sequences}
        ordered = [last[sample] for sample in sorted(last)]
        return tuple(s.group for s in ordered), tuple(s.reward for s in ordered)


def lag_facts(step: StepSequences) -> dict[str, float]:
    """How old the tokens that are trained are: by token, and by the oldest token of each sample."""
    lags = [step.version - s.versions[s.trained(mask_below=step.mask_below)] for s in step.sequences]
    tokens = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64)
    oldest: dict[int, int] = {}
    for sequence, lag in zip(step.sequences, lags, strict=True):
        if lag.size:
            oldest[sequence.sample] = max(oldest.get(sequence.sample, 0), int(lag.max()))
    return _spread("policy_lag", tokens) | _spread("async/staleness", oldest.values(), joint="_")


def length_facts(step: StepSequences) -> dict[str, float]:
    """Lengths and rewards of the step's samples, as they were generated."""
    lengths: dict[int, int] = {}
    for sequence in step.sequences:
        lengths[sequence.sample] = lengths.get(sequence.sample, 0) + sequence.num_completion_tokens
    cut = [not s.finished for s in step.sequences]
    rewards = np.asarray(step.sample_rewards[1], dtype=np.float64)
    facts = _spread("response_length", lengths.values())
    facts["response_length/clip_ratio"] = float(np.mean(cut)) if cut else 0.0
    facts["reward/mean"] = float(rewards.mean()) if rewards.size else 0.0
    facts["reward/std"] = float(rewards.std()) if rewards.size else 0.0
    return facts


def _spread(
    name: str, values: "Iterable[int] | Sequence[int] | NDArray[np.int64]", joint: str = "/"
) -> dict[str, float]:
    numbers = np.asarray(list(values), dtype=np.float64)
    if not numbers.size:
        return {}
    return {
        f"{name}{joint}min": float(numbers.min()),
        f"{name}{joint}mean": float(numbers.mean()),
        f"{name}{joint}max": float(numbers.max()),
    }
