"""Payloads as bytes. Strict: what is decoded keeps every rule of `sample_checks`, or is refused with a reason.

Never pickle. The size is bounded before the bytes are parsed, shapes before arrays are made.
"""

import numpy as np
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import sample_pb2 as pb
from google.protobuf.message import DecodeError

from drumroll import tensors
from drumroll.errors import CorruptError
from drumroll.sample_checks import check_payload
from drumroll.sample_types import (
    SCHEMA_VERSION,
    FinishReason,
    Limits,
    LogprobKind,
    SamplePayload,
    Sampling,
    Segment,
    Sequence,
    Turn,
)

_LOGPROB_KINDS = {LogprobKind.RAW: pb.LOGPROB_KIND_RAW, LogprobKind.PROCESSED: pb.LOGPROB_KIND_PROCESSED}
_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.DRAINED: pb.FINISH_REASON_DRAINED,
}
_LOGPROB_KIND_NAMES = {int(value): kind for kind, value in _LOGPROB_KINDS.items()}
_FINISH_REASON_NAMES = {int(value): reason for reason, value in _FINISH_REASONS.items()}


def encode(payload: SamplePayload) -> bytes:
    """The payload's bytes; equal payloads have equal bytes.

    Raises:
        CorruptError: the payload breaks a rule (such as a non-finite log-probability) and must not be sent.
    """
    check_payload(payload)
    message = pb.SamplePayload(
        schema_version=SCHEMA_VERSION,
        sequences=[_sequence_to_proto(sequence) for sequence in payload.sequences],
        sampling=_sampling_to_proto(payload.sampling),
        tokenizer_digest=payload.tokenizer_digest,
        planned_tokens=payload.planned_tokens,
        actual_tokens=payload.actual_tokens,
        trace_context=payload.trace_context,
        started_at=payload.started_at,
        finished_at=payload.finished_at,
        row=payload.row,
    )
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, limits: Limits) -> SamplePayload:
    """The payload in `data`; its arrays are read-only.

    Raises:
        CorruptError: anything about it is not as it must be.
    """
    if len(data) > limits.max_payload_bytes:
        raise CorruptError(f"a payload of {len(data)} bytes, at most {limits.max_payload_bytes} are allowed")
    try:
        message = pb.SamplePayload.FromString(data)
    except DecodeError as error:
        raise CorruptError("the payload is not a SamplePayload message") from error
    if message.schema_version != SCHEMA_VERSION:
        raise CorruptError(f"payload schema version {message.schema_version}; {SCHEMA_VERSION} is known here")
    payload = SamplePayload(
        sequences=tuple(_sequence(item, f"sequence {number}") for number, item in enumerate(message.sequences)),
        sampling=_sampling(message.sampling),
        row=message.row,
        tokenizer_digest=message.tokenizer_digest,
        planned_tokens=message.planned_tokens,
        actual_tokens=message.actual_tokens,
        trace_context=message.trace_context,
        started_at=message.started_at,
        finished_at=message.finished_at,
    )
    check_payload(payload, limits)
    return payload


def _sequence_to_proto(sequence: Sequence) -> pb.Sequence:
    return pb.Sequence(
        prompt_length=sequence.prompt_length,
        token_ids=tensors.to_proto(sequence.token_ids),
        loss_mask=tensors.to_proto(sequence.loss_mask),
        logprobs=tensors.to_proto(sequence.logprobs),
        logprob_kind=_LOGPROB_KINDS[sequence.logprob_kind],
        segments=[_segment_to_proto(segment) for segment in sequence.segments],
        parent=-1 if sequence.parent is None else sequence.parent,
        branch_point=sequence.branch_point,
        turns=[_turn_to_proto(turn) for turn in sequence.turns],
        finish_reason=_FINISH_REASONS[sequence.finish_reason],
        reward=sequence.reward,
        reward_parts=dict(sequence.reward_parts),
        side_tensors={name: tensors.to_proto(array) for name, array in sequence.side_tensors.items()},
    )


def _sequence(message: pb.Sequence, name: str) -> Sequence:
    logprob_kind = _LOGPROB_KIND_NAMES.get(message.logprob_kind)
    finish_reason = _FINISH_REASON_NAMES.get(message.finish_reason)
    if logprob_kind is None or finish_reason is None:
        raise CorruptError(
            f"{name}: unknown logprob kind {message.logprob_kind} or finish reason {message.finish_reason}"
        )
    return Sequence(
        prompt_length=message.prompt_length,
        token_ids=tensors.vector(message.token_ids, f"{name}: token_ids", np.int32).view(np.int32),
        loss_mask=tensors.vector(message.loss_mask, f"{name}: loss_mask", np.uint8).view(np.uint8),
        logprobs=tensors.vector(message.logprobs, f"{name}: logprobs", np.float32).view(np.float32),
        logprob_kind=logprob_kind,
        segments=tuple(_segment(segment) for segment in message.segments),
        finish_reason=finish_reason,
        reward=message.reward,
        reward_parts=dict(message.reward_parts),
        parent=None if message.parent == -1 else message.parent,
        branch_point=message.branch_point,
        turns=tuple(_turn(turn) for turn in message.turns),
        side_tensors={
            key: tensors.from_proto(tensor, f"{name}: side tensor {key!r}")
            for key, tensor in message.side_tensors.items()
        },
    )


def _segment_to_proto(segment: Segment) -> pb.VersionSegment:
    return pb.VersionSegment(
        version=segment.version,
        lineage=segment.lineage,
        adapter=segment.adapter,
        replica=common_pb2.ReplicaId(name=segment.replica, instance=segment.instance),
        start=segment.start,
        end=segment.end,
    )


def _segment(message: pb.VersionSegment) -> Segment:
    return Segment(
        version=message.version,
        lineage=message.lineage,
        replica=message.replica.name,
        instance=message.replica.instance,
        start=message.start,
        end=message.end,
        adapter=message.adapter,
    )


def _turn_to_proto(turn: Turn) -> pb.Turn:
    return pb.Turn(
        role=turn.role,
        start=turn.start,
        end=turn.end,
        started_at=turn.started_at,
        finished_at=turn.finished_at,
        tool=turn.tool,
    )


def _turn(message: pb.Turn) -> Turn:
    return Turn(message.role, message.start, message.end, message.started_at, message.finished_at, message.tool)


def _sampling_to_proto(sampling: Sampling) -> pb.SamplingParameters:
    return pb.SamplingParameters(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.max_tokens,
        stop_token_ids=sampling.stop_token_ids,
        stop_strings=sampling.stop_strings,
    )


def _sampling(message: pb.SamplingParameters) -> Sampling:
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        repetition_penalty=message.repetition_penalty,
        max_tokens=message.max_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        stop_strings=tuple(message.stop_strings),
    )
