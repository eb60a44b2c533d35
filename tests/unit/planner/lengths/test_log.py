"""The log of answers: round trip, order, torn tails, repeats."""

import math

import numpy as np
import pytest
from drumroll_planner.lengths import log
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import CorruptError

LINES = st.tuples(
    st.integers(0, 20),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), min_size=1, max_size=3),
)


def written(lines: list[tuple[int, int, list[tuple[int, bool]]]]) -> bytes:
    parts = [log.encode(row, step, reward=0.5, answers=answers, group_size=3) for row, step, answers in lines]
    return log.head(3) + b"".join(parts)


@settings(deadline=None, max_examples=60)
@given(lines=st.lists(LINES, max_size=12), seed=st.randoms(use_true_random=False), cut=st.integers(0, 20))
def test_batches_do_not_depend_on_the_order_of_records_nor_on_a_torn_tail(
    lines: list[tuple[int, int, list[tuple[int, bool]]]], seed: object, cut: int
) -> None:
    shuffled = list(lines)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    torn = written(shuffled) + b"\x01" * cut
    one = list(log.batches(log.decode(written(lines)), num_rows=15))
    other = list(log.batches(log.decode(torn), num_rows=15))
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert np.array_equal(first.rows, second.rows)
        assert np.array_equal(first.lengths, second.lengths, equal_nan=True)
        assert np.array_equal(first.censored, second.censored)
        assert first.rows.max() < 15


def test_lengths_cuts_and_rewards_come_back() -> None:
    data = log.head(3) + log.encode(4, 2, reward=math.nan, answers=[(7, True), (9, False)], group_size=3)
    (found,) = log.batches(log.decode(data), num_rows=5)
    assert found.rows.tolist() == [4]
    assert found.lengths[0, :2].tolist() == [7.0, 9.0]
    assert np.isnan(found.lengths[0, 2])
    assert found.censored.tolist() == [[True, False, False]]
    assert np.isnan(found.rewards[0])


def test_other_files_are_refused() -> None:
    with pytest.raises(CorruptError, match="not a log of answers"):
        log.decode(b"something else entirely")
