import math

import numpy as np
import pytest
from drumroll_trainer.advantages import group_advantages
from hypothesis import given, settings
from hypothesis import strategies as st


def advantages(rewards: list[float], **settings: str) -> list[float]:
    found = group_advantages(rewards, [0] * len(rewards), **settings)  # type: ignore[arg-type]
    return [float(value) for value in found.values]


def test_equal_rewards_have_no_advantage_n6() -> None:
    found = group_advantages([1, 1, 1, 1], [0] * 4)
    assert found.values.tolist() == [0, 0, 0, 0]
    assert (found.num_groups, found.num_without_variance) == (1, 1)


def test_rounding_noise_is_not_blown_up_n6() -> None:
    assert max(map(abs, advantages([0.3, 0.1 + 0.2, 0.3, 0.3]))) < 1e-6


def test_magnitude_is_that_of_the_population_deviation_n6() -> None:
    assert advantages([1, 0, 0, 1]) == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-12)


def test_float32_rewards_that_differ_by_rounding_count_as_equal() -> None:
    assert advantages([float(np.float32(0.1)), 0.1]) == [0, 0]


def test_without_division_the_advantage_is_the_distance_to_the_mean() -> None:
    assert advantages([1, 0, 0, 0], norm="none") == [0.75, -0.25, -0.25, -0.25]


def test_groups_do_not_mix() -> None:
    found = group_advantages([1, 5, 0, 5], [0, 1, 0, 1])
    assert found.values.tolist() == [1, 0, -1, 0]
    assert found.num_without_variance == 1


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        advantages([1.0, math.nan])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12), st.floats(-10, 10))
def test_advantages_sum_to_zero_and_have_unit_spread_or_none(rewards: list[float], shift: float) -> None:
    values = group_advantages([r + shift for r in rewards], [0] * len(rewards)).values
    assert abs(values.sum()) < 1e-6 * len(rewards)
    assert values.std() == pytest.approx(1.0) or not values.any()
