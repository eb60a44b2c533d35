"""Samples: the codec, its refusals, partial samples (case V8 in full)."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_proto.v1 import sample_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import CorruptError
from drumroll.samples import (
    FinishReason,
    Limits,
    LogprobKind,
    SampleId,
    SamplePayload,
    Sampling,
    Segment,
    Sequence,
    Turn,
    continue_partial,
    decode,
    encode,
    make_sequence,
    mask_below,
    segments_from_versions,
)

NO_DEADLINE = settings(max_examples=60, deadline=None)
LIMITS = Limits(max_prompt_tokens=8, max_response_tokens=16, vocab_size=1000)
SAMPLING = Sampling(temperature=0.7, top_k=5, max_tokens=16, stop_token_ids=(2,), stop_strings=("end",))
V8 = json.loads((Path(__file__).parent / "v8_partial.json").read_text())


def payload_of(sequence: Sequence, **changes: Any) -> SamplePayload:
    payload = SamplePayload((sequence,), SAMPLING, row=7, actual_tokens=sequence.num_completion_tokens)
    return replace(payload, tokenizer_digest="ab", trace_context="00-1", started_at=1.5, finished_at=2.5, **changes)


def sequence_of(
    versions: list[int], *, prompt: list[int] | None = None, instance: str = "a", ids: list[int] | None = None
) -> Sequence:
    return make_sequence(
        prompt_ids=prompt or [1, 2],
        completion_ids=ids or list(range(11, 11 + len(versions))),
        logprobs=[-0.1 * (i + 1) for i in range(len(versions))],
        segments=segments_from_versions(versions, replica="rollout-0", instance=instance),
        finish_reason=FinishReason.STOP,
        reward=1.0,
        reward_parts={"answer": 1.0},
    )


@st.composite
def payloads(draw: st.DrawFn) -> SamplePayload:
    versions = sorted(draw(st.lists(st.integers(0, 5), min_size=1, max_size=16)))
    count = len(versions)
    finite = st.floats(-50, 0, width=32)
    sequence = make_sequence(
        prompt_ids=draw(st.lists(st.integers(0, 999), min_size=1, max_size=8)),
        completion_ids=draw(st.lists(st.integers(0, 999), min_size=count, max_size=count)),
        logprobs=draw(st.lists(finite, min_size=count, max_size=count)),
        segments=segments_from_versions(versions, replica="r", instance="i", lineage=dict.fromkeys(range(6), 1)),
        finish_reason=draw(st.sampled_from(FinishReason)),
        logprob_kind=draw(st.sampled_from(LogprobKind)),
        reward=draw(st.floats(-10, 10)),
        reward_parts=draw(st.dictionaries(st.text(max_size=5), st.floats(-1, 1), max_size=3)),
    )
    turns = (Turn("assistant", 0, count, 1.0, 2.0, "calculator"),) if draw(st.booleans()) else ()
    sides = {"entropy": np.zeros((count, 2), np.float32)} if draw(st.booleans()) else {}
    return payload_of(replace(sequence, turns=turns, side_tensors=sides, branch_point=draw(st.integers(0, 3))))


@NO_DEADLINE
@given(payloads())
def test_a_decoded_payload_encodes_to_the_same_bytes(payload: SamplePayload) -> None:
    data = encode(payload)
    again = decode(data, LIMITS)
    assert encode(again) == data
    assert again.sequences[0].segments == payload.sequences[0].segments
    assert np.array_equal(again.sequences[0].token_ids, payload.sequences[0].token_ids)
    assert (again.sampling, again.row, again.reward) == (payload.sampling, payload.row, payload.reward)


@NO_DEADLINE
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_keep_every_rule_s2(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(data, LIMITS)


@NO_DEADLINE
@given(payloads(), st.data())
def test_a_changed_byte_is_refused_or_gives_a_lawful_payload(payload: SamplePayload, data: st.DataObject) -> None:
    good = bytearray(encode(payload))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode(bytes(good), LIMITS)
    except CorruptError:
        return
    encode(changed)


def message_of(payload: SamplePayload) -> pb.SamplePayload:
    return pb.SamplePayload.FromString(encode(payload))


def set_nan(m: pb.SamplePayload) -> None:
    m.sequences[0].logprobs.data = np.full(10, math.nan, "<f4").tobytes()


def nine_logprobs(m: pb.SamplePayload) -> None:
    m.sequences[0].logprobs.data = m.sequences[0].logprobs.data[:36]
    m.sequences[0].logprobs.shape[0] = 9


def set_int(value: int, index: int = 0) -> Any:
    def change(m: pb.SamplePayload) -> None:
        ids = np.frombuffer(m.sequences[0].token_ids.data, "<i4").copy()
        ids[index] = value
        m.sequences[0].token_ids.data = ids.tobytes()

    return change


def field(path: str, value: Any) -> Any:
    def change(m: pb.SamplePayload) -> None:
        target: Any = m
        *parents, last = path.split(".")
        for name in parents:
            target = target[int(name)] if name.isdigit() else getattr(target, name)
        setattr(target, last, value)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (nine_logprobs, "10 completion tokens with 9 logprobs"),
        (set_nan, "non-finite logprobs"),
        (field("schema_version", 2), "schema version 2"),
        (field("sequences.0.logprob_kind", 7), "unknown logprob kind 7"),
        (field("sequences.0.finish_reason", 0), "finish reason 0"),
        (field("sequences.0.token_ids.dtype", 9), "unknown dtype 9"),
        (field("sequences.0.token_ids.dtype", pb.DTYPE_FLOAT32), "a vector of int32 is wanted"),
        (field("sequences.0.prompt_length", 0), "0 prompt tokens"),
        (field("sequences.0.prompt_length", 12), "12 prompt tokens of 12"),
        (field("sequences.0.segments.0.end", 9), "segments cover"),
        (field("sequences.0.segments.0.start", 1), "must start at 0"),
        (field("sequences.0.reward", math.inf), "non-finite reward"),
        (field("sequences.0.parent", 0), "branches from sequence 0"),
        (field("sequences.0.loss_mask.data", b"\x02" * 10), "neither 0 nor 1"),
        (field("actual_tokens", 3), "actual_tokens is 3"),
        (set_int(-1), "a negative token id"),
        (set_int(1000), "token id 1000 in a vocabulary of 1000"),
        (lambda m: m.ClearField("sequences"), "no sequence"),
        (lambda m: m.sequences.append(m.sequences[0]), "2 sequences"),
        (lambda m: m.sequences[0].token_ids.shape.append(2**40), "does not hold"),
        (lambda m: m.sequences[0].token_ids.shape.extend([1] * 9), "10 dimensions"),
        (
            lambda m: m.sequences[0].side_tensors["x"].MergeFrom(pb.Tensor(dtype=1, shape=[0, *[2**62] * 3])),
            "is not a shape",
        ),
        (lambda m: m.sequences[0].turns.add(start=3, end=99), "a turn that lies outside"),
        (
            lambda m: (
                m.sequences[0]
                .side_tensors["x"]
                .MergeFrom(pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[1], data=np.float32("inf").tobytes()))
            ),
            "side tensor 'x' is non-finite",
        ),
    ],
)
def test_a_payload_that_breaks_a_rule_is_refused_with_the_reason_s2(change: Any, reason: str) -> None:
    message = message_of(payload_of(sequence_of([3] * 10)))
    change(message)
    with pytest.raises(CorruptError, match=reason):
        decode(message.SerializeToString(), LIMITS)


def test_payloads_over_the_job_s_limits_are_refused_by_size_before_parsing() -> None:
    with pytest.raises(CorruptError, match="bytes, at most"):
        decode(b"\x00" * (LIMITS.max_payload_bytes + 1), LIMITS)
    long = encode(payload_of(sequence_of([1] * 10, prompt=[1] * 9)))
    with pytest.raises(CorruptError, match="9 prompt tokens, at most 8"):
        decode(long, LIMITS)
    with pytest.raises(CorruptError, match="10 completion tokens, at most 4"):
        decode(encode(payload_of(sequence_of([1] * 10))), replace(LIMITS, max_response_tokens=4))


def test_the_largest_lawful_payload_fits_the_size_limit() -> None:
    limits = Limits(max_prompt_tokens=5, max_response_tokens=300)
    sequence = sequence_of(list(range(300)), prompt=[1] * 5, instance="x" * 40)
    sequence = replace(sequence, side_tensors={"a": np.zeros(300, np.int64)})
    assert decode(encode(payload_of(sequence)), limits).actual_tokens == 300


def test_the_writer_refuses_what_the_reader_would() -> None:
    broken = replace(sequence_of([1, 1]), logprobs=np.asarray([-1.0, -np.inf], np.float32))
    with pytest.raises(CorruptError, match="non-finite"):
        encode(payload_of(broken))
    with pytest.raises(ValueError, match="dtype float64"):
        encode(payload_of(replace(sequence_of([1, 1]), side_tensors={"a": np.zeros(2)})))


def test_segments_run_length_encode_versions_and_know_lineages() -> None:
    segments = segments_from_versions([3, 3, 4, 3], replica="r", instance="i", lineage={3: 0, 4: 1})
    assert [(s.version, s.lineage, s.start, s.end) for s in segments] == [(3, 0, 0, 2), (4, 1, 2, 3), (3, 0, 3, 4)]
    assert segments_from_versions([], replica="r", instance="i") == ()


def v8_part(part: dict[str, Any], *, prompt: list[int], instance: str) -> SamplePayload:
    sequence = make_sequence(
        prompt_ids=prompt,
        completion_ids=part["tokens"],
        logprobs=part["logprobs"],
        segments=segments_from_versions([part["version"]] * len(part["tokens"]), replica="r", instance=instance),
        finish_reason=FinishReason(part["stop"]),
    )
    return payload_of(sequence)


@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 11, 12, 13, 14, 15]])
def test_a_continued_partial_has_every_token_once_v8(prompt: list[int]) -> None:
    first = v8_part(V8["part_1"], prompt=[1, 2], instance="a")
    second = replace(v8_part(V8["part_2"], prompt=prompt, instance="b"), started_at=9.0, finished_at=10.0)
    merged = decode(encode(continue_partial(first, second)), LIMITS)
    sequence, right = merged.sequences[0], V8["right"]
    assert sequence.completion_ids.tolist() == V8["part_1"]["tokens"] + V8["part_2"]["tokens"]
    assert len(sequence.completion_ids) == len(sequence.logprobs) == len(sequence.loss_mask) == right["length"]
    assert sequence.logprobs.tolist() == np.float32(V8["part_1"]["logprobs"] + V8["part_2"]["logprobs"]).tolist()
    assert [[s.version, s.start, s.end] for s in sequence.segments] == right["segments"]
    assert [s.instance for s in sequence.segments] == ["a", "b"]
    assert (merged.oldest_version, merged.newest_version) == (right["oldest_version"], 4)
    assert sequence.finish_reason.value == right["stop"]
    assert (merged.started_at, merged.finished_at, merged.actual_tokens) == (1.5, 10.0, 12)
    assert mask_below(sequence, 4).tolist() == [0] * 5 + [1] * 7
    assert mask_below(sequence, 3).tolist() == [1] * 12


@NO_DEADLINE
@given(st.lists(st.integers(0, 3), min_size=2, max_size=16), st.data())
def test_parts_cut_anywhere_join_to_the_whole(versions: list[int], data: st.DataObject) -> None:
    versions = sorted(versions)
    cut = data.draw(st.integers(1, len(versions) - 1))
    side = {"entropy": np.arange(len(versions), dtype=np.float32), "fixed": np.arange(40)}
    turns = (Turn("a", 0, cut, 1, 2), Turn("b", cut, cut, 3, 4))
    whole = replace(sequence_of(versions), side_tensors=side, turns=turns)

    def part(start: int, end: int, reason: FinishReason) -> SamplePayload:
        kept = sequence_of(versions[start:end], ids=whole.completion_ids[start:end].tolist())
        own_turns = turns[:1] if start == 0 else (Turn("b", 0, 0, 3, 4),)
        sides = {"entropy": side["entropy"][start:end], "fixed": side["fixed"]}
        lp = whole.logprobs[start:end]
        return payload_of(replace(kept, logprobs=lp, finish_reason=reason, turns=own_turns, side_tensors=sides))

    joined = continue_partial(part(0, cut, FinishReason.DRAINED), part(cut, len(versions), FinishReason.STOP))
    assert encode(joined) == encode(payload_of(whole))


def drained(**changes: Any) -> SamplePayload:
    return payload_of(replace(sequence_of([3, 3]), finish_reason=FinishReason.DRAINED, **changes))


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (drained(), payload_of(sequence_of([4], prompt=[9])), "prompt is not that"),
        (payload_of(sequence_of([3])), payload_of(sequence_of([4])), "ended with 'stop'"),
        (drained(), replace(payload_of(sequence_of([4])), row=8), "row 7 cannot be continued by row 8"),
        (drained(), replace(payload_of(sequence_of([4])), sampling=Sampling(1.0)), "sampling changed"),
        (drained(logprob_kind=LogprobKind.RAW), payload_of(sequence_of([4])), "logprobs of the parts are raw"),
        (drained(side_tensors={"x": np.zeros(2, np.int32)}), payload_of(sequence_of([4])), r"\['x'\] are in one"),
        (
            drained(side_tensors={"x": np.zeros(5, np.int32)}),
            payload_of(replace(sequence_of([4]), side_tensors={"x": np.ones(5, np.int32)})),
            "neither per token nor equal",
        ),
        (replace(drained(), sequences=()), payload_of(sequence_of([4])), "one sequence"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(first: Any, second: Any, reason: str) -> None:
    with pytest.raises(CorruptError, match=reason):
        continue_partial(first, second)


def test_a_continuation_may_have_fewer_tokens_left_and_keeps_the_whole_s_limit() -> None:
    second = payload_of(sequence_of([4]))
    merged = continue_partial(drained(), replace(second, sampling=replace(SAMPLING, max_tokens=14)))
    assert merged.sampling.max_tokens == 16


def test_a_part_by_the_same_instance_and_version_extends_its_segment() -> None:
    merged = continue_partial(drained(), payload_of(sequence_of([3, 4])))
    assert merged.sequences[0].segments == (
        Segment(3, 0, "rollout-0", "a", 0, 3),
        Segment(4, 0, "rollout-0", "a", 3, 4),
    )


def test_sample_ids_read_well_and_sort_by_ticket() -> None:
    assert str(SampleId(1, 20, 3, 0)) == "1/20#3 attempt 0"
    assert SampleId(0, 9, 1, 0) < SampleId(1, 0, 0, 0)
