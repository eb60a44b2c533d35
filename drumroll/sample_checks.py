"""What must hold of a payload, whoever made it. The writer checks before it sends, the reader before it believes."""

import numpy as np

from drumroll.errors import CorruptError
from drumroll.sample_types import Limits, SamplePayload, Segment, Sequence
from drumroll.tensors import Array


def check_payload(payload: SamplePayload, limits: Limits | None = None) -> None:
    """Check lengths, segments, values and (where given) limits.

    Raises:
        CorruptError: with the reason.
    """
    if not payload.sequences:
        raise CorruptError("the sample has no sequence")
    if limits is not None and len(payload.sequences) > limits.max_sequences:
        raise CorruptError(f"{len(payload.sequences)} sequences, at most {limits.max_sequences} are allowed")
    for number, sequence in enumerate(payload.sequences):
        _check_sequence(sequence, f"sequence {number}")
        if sequence.parent is not None and not 0 <= sequence.parent < number:
            raise CorruptError(f"sequence {number} branches from sequence {sequence.parent}, which is not before it")
        if limits is not None:
            _check_limits(sequence, f"sequence {number}", limits)
    total = sum(sequence.num_completion_tokens for sequence in payload.sequences)
    if payload.actual_tokens != total:
        raise CorruptError(f"actual_tokens is {payload.actual_tokens}, the sequences hold {total} completion tokens")


def _check_sequence(sequence: Sequence, name: str) -> None:
    completion = sequence.num_completion_tokens
    if sequence.prompt_length < 1 or completion < 1:
        raise CorruptError(f"{name}: {sequence.prompt_length} prompt tokens of {len(sequence.token_ids)} in all")
    for what, array in (("logprobs", sequence.logprobs), ("mask values", sequence.loss_mask)):
        if len(array) != completion:
            raise CorruptError(f"{name}: {completion} completion tokens with {len(array)} {what}")
    _check_segments(sequence.segments, completion, name)
    if not np.isfinite(sequence.logprobs).all():
        raise CorruptError(f"{name}: non-finite logprobs")
    rewards = np.asarray([sequence.reward, *sequence.reward_parts.values()])
    if not np.isfinite(rewards).all():
        raise CorruptError(f"{name}: non-finite reward")
    if sequence.token_ids.min() < 0:
        raise CorruptError(f"{name}: a negative token id")
    if sequence.loss_mask.max() > 1:
        raise CorruptError(f"{name}: a mask value that is neither 0 nor 1")
    if any(not 0 <= turn.start <= turn.end <= completion for turn in sequence.turns):
        raise CorruptError(f"{name}: a turn that lies outside its {completion} completion tokens")
    for key, side in sequence.side_tensors.items():
        _check_finite(side, f"{name}: side tensor {key!r}")


def _check_segments(segments: tuple[Segment, ...], completion: int, name: str) -> None:
    position = 0
    for segment in segments:
        if segment.start != position or segment.end <= segment.start:
            raise CorruptError(f"{name}: segment [{segment.start}, {segment.end}) where one must start at {position}")
        position = segment.end
    if position != completion:
        raise CorruptError(f"{name}: segments cover [0, {position}) of {completion} completion tokens")


def _check_finite(array: Array, name: str) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CorruptError(f"{name} is non-finite")


def _check_limits(sequence: Sequence, name: str, limits: Limits) -> None:
    if sequence.prompt_length > limits.max_prompt_tokens:
        raise CorruptError(f"{name}: {sequence.prompt_length} prompt tokens, at most {limits.max_prompt_tokens}")
    completion = sequence.num_completion_tokens
    if completion > limits.max_response_tokens:
        raise CorruptError(f"{name}: {completion} completion tokens, at most {limits.max_response_tokens}")
    if limits.vocab_size is not None and int(sequence.token_ids.max()) >= limits.vocab_size:
        raise CorruptError(f"{name}: token id {sequence.token_ids.max()} in a vocabulary of {limits.vocab_size}")
