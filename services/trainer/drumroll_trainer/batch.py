"""From a step's sequences to packed micro-batches. Pure numpy.

Sequences are laid end to end without padding. Bins are filled by longest first into the least loaded one, so that all
micro-batches of all ranks are about equally long; every rank gets the same number of them, because sharded ranks
meet in every forward pass. Equal input gives equal output, down to the order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drumroll.errors import JobError
from drumroll_trainer.sequences import TrainSequence


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """T tokens of packed sequences, N of which (all of completions) enter the loss."""

    token_ids: NDArray[np.int64]
    """[T]"""
    positions: NDArray[np.int64]
    """[T], from 0 in each sequence."""
    lengths: tuple[int, ...]
    """Tokens of each sequence; their sum is T."""
    predict_at: NDArray[np.int64]
    """[N], index into T of the token before each target: its hidden state predicts the target."""
    targets: NDArray[np.int64]
    """[N]"""
    advantages: NDArray[np.float32]
    """[N]"""
    behaviour_logprobs: NDArray[np.float32]
    """[N]"""
    temperatures: NDArray[np.float32]
    """[N]"""
    versions: NDArray[np.int64]
    """[N]"""


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """Which sequences go into which micro-batch of which rank."""

    sequences: tuple[TrainSequence, ...]
    advantages: NDArray[np.float64]
    """One per sequence."""
    mask_below: int
    bins: tuple[tuple[tuple[int, ...], ...], ...]
    """[rank][micro-batch] -> indices of sequences."""
    num_trained: int
    """Tokens that enter the loss, over all ranks: what the loss is divided by."""
    num_masked: int
    """Tokens that the policy wrote and that are too old to be trained."""

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the network."""
        return sum(self.sequences[index].num_tokens for rank in self.bins for held in rank for index in held)

    def micro_batches(self, rank: int) -> list[MicroBatch]:
        """What one rank trains, in order."""
        return [
            _micro_batch(
                [self.sequences[i] for i in held],
                [float(self.advantages[i]) for i in held],
                mask_below=self.mask_below,
            )
            for held in self.bins[rank]
        ]


def plan_batch(
    sequences: Sequence[TrainSequence],
    advantages: Sequence[float] | NDArray[np.float64],
    *,
    mask_below: int,
    token_budget: int,
    world_size: int,
) -> BatchPlan:
    """Pack what has tokens to train.

    Raises:
        JobError: a sequence is longer than the budget.
    """
    trained = [int(s.trained(mask_below=mask_below).sum()) for s in sequences]
    written = sum(int(s.loss_mask.sum()) for s in sequences)
    packed = [index for index, count in enumerate(trained) if count]
    longest = max((sequences[index].num_tokens for index in packed), default=0)
    if longest > token_budget:
        raise JobError(
            f"trainer.maxTokensPerMicroBatch is {token_budget}, a sample has {longest} tokens; set it to at least that"
        )
    lengths = [sequences[index].num_tokens for index in packed]
    bins = [tuple(packed[i] for i in held) for held in pack(lengths, capacity=token_budget, multiple=world_size)]
    return BatchPlan(
        sequences=tuple(sequences),
        advantages=np.asarray(advantages, dtype=np.float64),
        mask_below=mask_below,
        # Neighbours in length share a turn, so that no rank waits long for another one.
        bins=tuple(tuple(bins[rank::world_size]) for rank in range(world_size)),
        num_trained=sum(trained),
        num_masked=written - sum(trained),
    )


def pack(lengths: Sequence[int], *, capacity: int, multiple: int) -> list[list[int]]:
    """Spread items over the fewest bins that longest-first filling needs, rounded up to a multiple; fullest bin first.

    Every bin holds at most `capacity`; some may be empty where there are few items. Indices in a bin are ascending.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    count = multiple * max(1, math.ceil(sum(lengths) / (capacity * multiple)))
    while (bins := _fill(lengths, order, capacity=capacity, count=count)) is None:
        count += multiple
    loads = [sum(lengths[i] for i in held) for held in bins]
    ranked = sorted(range(count), key=lambda b: (-loads[b], b))
    return [sorted(bins[b]) for b in ranked]


def _fill(lengths: Sequence[int], order: Sequence[int], *, capacity: int, count: int) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = np.zeros(count, dtype=np.int64)
    for index in order:
        least = int(loads.argmin())
        if loads[least] + lengths[index] > capacity:
            return None
        bins[least].append(index)
        loads[least] += lengths[index]
    return bins


def _micro_batch(sequences: Sequence[TrainSequence], advantages: Sequence[float], *, mask_below: int) -> MicroBatch:
    if not sequences:
        return _nothing()
    lengths = tuple(s.num_tokens for s in sequences)
    starts = np.cumsum((0, *lengths[:-1]))
    masks = [s.trained(mask_below=mask_below) for s in sequences]
    # Completion token j stands at prompt_length + j and is predicted by the token before it.
    places = [
        start + s.prompt_length - 1 + np.flatnonzero(mask)
        for start, s, mask in zip(starts, sequences, masks, strict=True)
    ]
    counts = [int(mask.sum()) for mask in masks]
    token_ids = np.concatenate([s.token_ids for s in sequences]).astype(np.int64)
    predict_at = np.concatenate(places).astype(np.int64)
    return MicroBatch(
        token_ids=token_ids,
        positions=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        lengths=lengths,
        predict_at=predict_at,
        targets=token_ids[predict_at + 1],
        advantages=np.repeat(np.asarray(advantages, dtype=np.float32), counts),
        behaviour_logprobs=np.concatenate([s.logprobs[m] for s, m in zip(sequences, masks, strict=True)]),
        temperatures=np.repeat(np.asarray([s.temperature for s in sequences], dtype=np.float32), counts),
        versions=np.concatenate([s.versions[m] for s, m in zip(sequences, masks, strict=True)]),
    )


def _nothing() -> MicroBatch:
    """A turn for a rank that has no sequence left: one token that enters no loss."""
    none = np.zeros(0, dtype=np.int64)
    values = np.zeros(0, dtype=np.float32)
    one = np.zeros(1, dtype=np.int64)
    return MicroBatch(one, one, (1,), none, none, values, values, values, none)
