"""V8: a continued sample has tokens, log-probabilities, mask and segments of both parts, once each."""

import pytest
from drumroll_rollout.engine import Chunk, SamplingSettings
from drumroll_rollout.payloads import Draft, PayloadMaker
from drumroll_rollout.transcript import BadSample, Transcript
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.samples import FinishReason, Limits, SamplePayload

SETTINGS = SamplingSettings(1.0, 1.0, 0, 1.0, 100, (2,))


def maker(replica: str) -> PayloadMaker:
    return PayloadMaker(
        replica=replica,
        instance="i",
        tokenizer_digest="digest",
        max_response_tokens=100,
        lineage=lambda version: 0,
        limits=Limits(max_prompt_tokens=8, max_response_tokens=100, vocab_size=1000),
    )


def draft(earlier: SamplePayload | None = None) -> Draft:
    return Draft(row=7, prompt_ids=[3, 4], sampling=SETTINGS, planned_tokens=0, started_at=1.0, earlier=earlier)


def transcript(ids: list[int], logprobs: list[float], version: int, finish: str | None) -> Transcript:
    made = Transcript()
    made.add(Chunk("r", tuple(ids), tuple(logprobs), (version,) * len(ids), finish))  # type: ignore[arg-type]
    return made


def test_twelve_tokens_of_two_replicas_become_one_sample() -> None:
    first = maker("a").make(draft(), transcript([11, 12, 13, 14, 15], [-0.1, -0.2, -0.3, -0.4, -0.5], 3, None))
    assert first is not None
    assert first.sequences[0].finish_reason is FinishReason.DRAINED
    rest = transcript([16, 17, 18, 19, 20, 21, 2], [-0.6, -0.7, -0.8, -0.9, -1.0, -1.1, -0.05], 4, "stop")
    whole = maker("b").make(draft(first), rest)
    assert whole is not None
    (sequence,) = whole.sequences
    assert sequence.token_ids.tolist() == [3, 4, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 2]
    assert (len(sequence.logprobs), len(sequence.loss_mask), whole.actual_tokens) == (12, 12, 12)
    assert [(s.version, s.start, s.end) for s in sequence.segments] == [(3, 0, 5), (4, 5, 12)]
    assert (whole.oldest_version, sequence.finish_reason) == (3, FinishReason.STOP)


def test_no_token_gives_no_payload() -> None:
    assert maker("a").make(draft(), Transcript()) is None


def test_a_token_outside_of_the_vocabulary_is_a_bad_sample() -> None:
    with pytest.raises(BadSample):
        maker("a").make(draft(), transcript([5000], [-0.1], 3, "stop"))


def test_a_whole_answer_gets_its_reward_without_new_tokens() -> None:
    earlier = maker("a").make(draft(), transcript([5, 2], [-0.1, -0.2], 3, "stop"))
    scored = draft(earlier)
    scored.reward, scored.reward_parts = 0.5, {"format": 1.0}
    whole = maker("b").make(scored, Transcript())
    assert whole is not None
    assert (whole.reward, dict(whole.sequences[0].reward_parts)) == (0.5, {"format": 1.0})
    assert whole.sequences[0].completion_ids.tolist() == [5, 2]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), finish=st.sampled_from(["stop", "length"]))
def test_any_number_of_parts_is_the_same_as_one(sizes: list[int], finish: str) -> None:
    total = sum(sizes)
    ids, logprobs = list(range(10, 10 + total)), [-(place + 1) / 64 for place in range(total)]
    undivided = maker("a").make(draft(), transcript(ids, logprobs, 3, finish))
    earlier: SamplePayload | None = None
    start = 0
    for number, size in enumerate(sizes):
        end = start + size
        last = number == len(sizes) - 1
        part = transcript(ids[start:end], logprobs[start:end], 3, finish if last else None)
        earlier, start = maker("a").make(draft(earlier), part), end
    assert undivided is not None
    assert earlier is not None
    for name in ("token_ids", "logprobs", "loss_mask"):
        assert getattr(earlier.sequences[0], name).tolist() == getattr(undivided.sequences[0], name).tolist()
    assert earlier.sequences[0].segments == undivided.sequences[0].segments
    assert earlier.sequences[0].finish_reason is undivided.sequences[0].finish_reason
