"""V4: what an engine may not say is refused, and never repaired."""

import math

import pytest
from drumroll_rollout.engine import Chunk
from drumroll_rollout.transcript import BadSample, Transcript
from hypothesis import given, settings
from hypothesis import strategies as st


def chunk(ids: tuple[int, ...], logprobs: tuple[float, ...], version: int = 3, finish: str | None = None) -> Chunk:
    return Chunk("r", ids, logprobs, (version,) * len(ids), finish)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        ((math.nan, math.nan), "token 2: log-probability nan"),
        ((-0.5, -math.inf), "token 3: log-probability -inf"),
        ((-0.5, math.inf), "token 3: log-probability inf"),
        ((0.5, -0.5), "token 2: log-probability 0.5"),
        ((-0.5,), "2 tokens, 1 log-probabilities"),
    ],
)
def test_impossible_values_are_refused_and_nothing_of_the_chunk_is_kept(
    logprobs: tuple[float, ...], message: str
) -> None:
    transcript = Transcript()
    transcript.add(chunk((1, 2), (-0.1, -0.2)))
    with pytest.raises(BadSample, match=message):
        transcript.add(chunk((3, 4), logprobs))
    assert (transcript.token_ids, transcript.logprobs, transcript.versions) == ([1, 2], [-0.1, -0.2], [3, 3])


def test_an_abort_is_no_finish() -> None:
    transcript = Transcript()
    transcript.add(chunk((1,), (-0.1,)))
    transcript.add(chunk((), (), finish="abort"))
    assert (transcript.finish_reason, len(transcript)) == (None, 1)


def test_a_cut_keeps_what_proven_weights_made_and_unfinishes_the_sample() -> None:
    transcript = Transcript()
    transcript.add(chunk((1, 2), (-0.1, -0.2), version=3))
    transcript.add(chunk((4,), (-0.3,), version=4, finish="stop"))
    transcript.cut_where(lambda version: version == 9)
    assert (transcript.finish_reason, len(transcript)) == ("stop", 3)
    transcript.cut_where(lambda version: version == 4)
    assert (transcript.finish_reason, transcript.token_ids, transcript.versions) == (None, [1, 2], [3, 3])


@settings(max_examples=60, deadline=None)
@given(versions=st.lists(st.integers(0, 5), max_size=30), bad=st.integers(0, 5))
def test_a_cut_leaves_a_prefix_without_the_unusable_version(versions: list[int], bad: int) -> None:
    transcript = Transcript()
    for place, version in enumerate(versions):
        transcript.add(chunk((place,), (-1.0,), version=version))
    transcript.cut_where(lambda version: version == bad)
    kept = len(transcript)
    assert transcript.versions == versions[:kept]
    assert bad not in transcript.versions
    assert kept == len(versions) or versions[kept] == bad
    assert len(transcript.token_ids) == len(transcript.logprobs) == kept
