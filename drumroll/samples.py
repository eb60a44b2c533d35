"""Samples: made by a rollout, sent as bytes, gone on with by another replica, masked by the trainer.

The place to import from; types, rules and the codec live in `sample_types`, `sample_checks` and `sample_codec`.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from drumroll.errors import CorruptError
from drumroll.sample_checks import check_payload
from drumroll.sample_codec import decode, encode
from drumroll.sample_types import (
    EntryKind,
    FinishReason,
    Limits,
    LogprobKind,
    SampleId,
    SamplePayload,
    Sampling,
    Segment,
    Sequence,
    Turn,
)
from drumroll.tensors import Array

__all__ = [
    "EntryKind",
    "FinishReason",
    "Limits",
    "LogprobKind",
    "SampleId",
    "SamplePayload",
    "Sampling",
    "Segment",
    "Sequence",
    "Turn",
    "check_payload",
    "continue_partial",
    "decode",
    "encode",
    "make_sequence",
    "mask_below",
    "segments_from_versions",
]


def segments_from_versions(
    versions: Items[int], *, replica: str, instance: str, lineage: int | Mapping[int, int] = 0
) -> tuple[Segment, ...]:
    """Run-length encode the version of each completion token.

    `lineage` is that of all versions, or a mapping from each version to its own.
    """
    array = np.asarray(versions, dtype=np.int64)
    edges = np.flatnonzero(np.diff(array)) + 1
    bounds = [0, *edges.tolist(), len(array)] if len(array) else [0]
    return tuple(
        Segment(
            version=int(array[start]),
            lineage=lineage if isinstance(lineage, int) else lineage[int(array[start])],
            replica=replica,
            instance=instance,
            start=start,
            end=end,
        )
        for start, end in pairwise(bounds)
    )


def make_sequence(
    *,
    prompt_ids: Items[int],
    completion_ids: Items[int],
    logprobs: Items[float],
    segments: tuple[Segment, ...],
    finish_reason: FinishReason,
    logprob_kind: LogprobKind = LogprobKind.PROCESSED,
    reward: float = 0.0,
    reward_parts: Mapping[str, float] | None = None,
) -> Sequence:
    """A sequence of what an engine gave; every completion token enters the loss."""
    return Sequence(
        prompt_length=len(prompt_ids),
        token_ids=np.concatenate([np.asarray(prompt_ids, np.int32), np.asarray(completion_ids, np.int32)]),
        loss_mask=np.ones(len(completion_ids), np.uint8),
        logprobs=np.asarray(logprobs, np.float32),
        logprob_kind=logprob_kind,
        segments=segments,
        finish_reason=finish_reason,
        reward=reward,
        reward_parts=dict(reward_parts or {}),
    )


def mask_below(sequence: Sequence, version: int) -> npt.NDArray[np.uint8]:
    """The loss mask [C] with the tokens of versions below `version` set to 0."""
    mask = sequence.loss_mask.copy()
    for segment in sequence.segments:
        if segment.version < version:
            mask[segment.start : segment.end] = 0
    return mask


def continue_partial(first: SamplePayload, second: SamplePayload) -> SamplePayload:
    """One payload from a handed back part and what another replica added to it.

    The second part's prompt is either the original prompt, or that prompt and the first part's tokens; its completion
    holds the new tokens alone. Rewards, finish reason and end time are the second's; the rest must agree.

    Raises:
        CorruptError: the two do not belong together.
    """
    if len(first.sequences) != 1 or len(second.sequences) != 1:
        raise CorruptError("only samples of one sequence can be continued")
    if (first.row, first.tokenizer_digest) != (second.row, second.tokenizer_digest):
        raise CorruptError(f"a part of row {first.row} cannot be continued by row {second.row} or another tokenizer")
    if replace(first.sampling, max_tokens=0) != replace(second.sampling, max_tokens=0):
        raise CorruptError(f"sampling changed between the parts: {first.sampling} and {second.sampling}")
    sequence = _continue_sequence(first.sequences[0], second.sequences[0])
    merged = replace(
        second,
        sequences=(sequence,),
        sampling=first.sampling,
        planned_tokens=first.planned_tokens or second.planned_tokens,
        actual_tokens=sequence.num_completion_tokens,
        trace_context=first.trace_context or second.trace_context,
        started_at=first.started_at,
    )
    check_payload(merged)
    return merged


def _continue_sequence(first: Sequence, second: Sequence) -> Sequence:
    if first.finish_reason is not FinishReason.DRAINED:
        raise CorruptError(f"a part that ended with {first.finish_reason.value!r} is not to be continued")
    if first.logprob_kind is not second.logprob_kind:
        raise CorruptError(f"logprobs of the parts are {first.logprob_kind.value} and {second.logprob_kind.value}")
    prompt = second.prompt_ids
    if not (np.array_equal(prompt, first.prompt_ids) or np.array_equal(prompt, first.token_ids)):
        raise CorruptError("the second part's prompt is not that of the first part")
    done = first.num_completion_tokens
    turns = tuple(replace(turn, start=turn.start + done, end=turn.end + done) for turn in second.turns)
    return replace(
        second,
        prompt_length=first.prompt_length,
        token_ids=np.concatenate([first.token_ids, second.completion_ids]),
        loss_mask=np.concatenate([first.loss_mask, second.loss_mask]),
        logprobs=np.concatenate([first.logprobs, second.logprobs]),
        segments=_join_segments(first.segments, second.segments, done),
        parent=first.parent,
        branch_point=first.branch_point,
        turns=first.turns + turns,
        side_tensors=_join_side_tensors(first, second),
    )


def _join_segments(first: tuple[Segment, ...], second: tuple[Segment, ...], done: int) -> tuple[Segment, ...]:
    shifted = tuple(replace(item, start=item.start + done, end=item.end + done) for item in second)
    last, following = first[-1], shifted[0]
    if replace(last, start=following.start, end=following.end) == following:
        return (*first[:-1], replace(last, end=following.end), *shifted[1:])
    return first + shifted


def _join_side_tensors(first: Sequence, second: Sequence) -> dict[str, Array]:
    if first.side_tensors.keys() != second.side_tensors.keys():
        names = sorted(first.side_tensors.keys() ^ second.side_tensors.keys())
        raise CorruptError(f"side tensors {names} are in one of the parts only")
    return {
        name: _join_side(name, array, second.side_tensors[name], (first, second))
        for name, array in first.side_tensors.items()
    }


def _join_side(name: str, one: Array, other: Array, parts: tuple[Sequence, Sequence]) -> Array:
    """Values per completion token are joined; anything else must be equal in both parts."""
    per_token = all(
        array.ndim > 0 and len(array) == part.num_completion_tokens
        for array, part in zip((one, other), parts, strict=True)
    )
    if per_token and one.shape[1:] == other.shape[1:] and one.dtype == other.dtype:
        return np.concatenate([one, other])
    if np.array_equal(one, other):
        return other
    raise CorruptError(f"side tensor {name!r} is neither per token nor equal in both parts")
