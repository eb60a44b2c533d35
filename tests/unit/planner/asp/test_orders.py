"""Orders: every prompt once, cycles alike, tails together, determinism."""

import numpy as np
from drumroll_planner.asp import Shape, shuffled, tail_batched
from drumroll_planner.asp.orders import cycle_sizes, longest_first, pyramid
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(deadline=None, max_examples=60)
@given(
    num=st.integers(0, 400),
    per_step=st.integers(1, 40),
    cycle=st.integers(1, 40),
    tail=st.integers(0, 40),
    seed=st.integers(0, 5),
    distinct=st.integers(1, 50),
)
def test_every_prompt_comes_once_whatever_the_sizes(
    num: int, per_step: int, cycle: int, tail: int, seed: int, distinct: int
) -> None:
    risk = np.random.default_rng(seed).integers(0, distinct, num).astype(np.float32)
    shape = Shape(cycle, tail)
    order = tail_batched(risk, per_step=per_step, shape=shape, seed=seed, epoch=2)
    assert sorted(order.tolist()) == list(range(num))
    again = tail_batched(risk.copy(), per_step=per_step, shape=shape, seed=seed, epoch=2)
    assert order.tobytes() == again.tobytes()


@settings(deadline=None, max_examples=30)
@given(num=st.integers(1, 300), per_step=st.integers(1, 20), value=st.floats(1, 1e6, width=32))
def test_constant_predictions_give_the_seeded_shuffle(num: int, per_step: int, value: float) -> None:
    risk = np.full(num, value, np.float32)
    order = tail_batched(risk, per_step=per_step, shape=Shape(8, 4), seed=3, epoch=1)
    assert np.array_equal(order, shuffled(num, seed=3, epoch=1))


def test_cycles_are_alike_and_hold_their_longest_side_by_side() -> None:
    num, per_step, shape = 16 * 64, 16, Shape(16, 8)
    risk = np.random.default_rng(0).lognormal(6, 1, num).astype(np.float32)
    order = tail_batched(risk, per_step=per_step, shape=shape, seed=0, epoch=0)
    steps = risk[order].reshape(-1, per_step)
    cycles = steps.mean(axis=1).reshape(4, 16).mean(axis=1)
    assert cycles.std() / cycles.mean() < 0.1
    tops = steps.max(axis=1)
    for cycle in tops.reshape(4, 16):
        longest = np.sort(np.argsort(-cycle)[:8])
        assert longest.tolist() == list(range(longest[0], longest[0] + 8))
        assert np.argmax(cycle) == longest[0] + 3
    assert (np.diff(steps, axis=1) <= 0).all()


def test_what_does_not_fill_a_step_comes_last_and_is_drawn_like_the_rest() -> None:
    risk = np.arange(50, dtype=np.float32)
    order = tail_batched(risk, per_step=8, shape=Shape(4, 2), seed=1, epoch=0)
    assert np.array_equal(order[48:], shuffled(50, seed=1, epoch=0)[48:])


def test_small_parts() -> None:
    assert pyramid(5).tolist() == [4, 2, 0, 1, 3]
    assert pyramid(0).tolist() == []
    assert cycle_sizes(37, 16).tolist() == [18, 19]
    assert cycle_sizes(3, 16).tolist() == [3]
    assert longest_first(np.array([0, 1, 2]), np.array([1.0, 3.0, 2.0], np.float32), per_step=2).tolist() == [1, 0, 2]
    assert str(Shape(8, 4)) == "cycles of 8 steps, their longest in 4"
