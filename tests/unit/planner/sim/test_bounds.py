"""Lower bounds, on cases that can be worked out by hand."""

import numpy as np
import pytest
from drumroll_planner.bounds import (
    Bounds,
    alone_s,
    best_token_s,
    generation_bound,
    longest_bound,
    trainer_bound,
    work_of,
)
from drumroll_planner.costs import CostModel


def test_work_is_the_sum_over_steps() -> None:
    lengths, prompts = np.array([[3, 1]], np.int32), np.array([10], np.int32)
    work = work_of(lengths, prompts, share_prefix=True)
    assert (work.tokens, work.kv_tokens, work.prefill_tokens, work.prefill_pairs) == (2, 11 + 12, 10, 45)
    assert work_of(lengths, prompts, share_prefix=False).prefill_tokens == 20


def test_the_best_batch_counts(costs: CostModel) -> None:
    assert best_token_s(costs, 1) == pytest.approx(0.010)
    assert best_token_s(costs, 8) == pytest.approx(0.016 / 8)


def test_generation_spreads_over_equal_and_unequal_replicas() -> None:
    slow = CostModel(step_s=0.01)
    work = work_of(np.full((4, 2), 101, np.int32), np.ones(4, np.int32), share_prefix=True)
    assert generation_bound(work, [slow], 1) == pytest.approx(8.0)
    assert generation_bound(work, [slow, slow], 1) == pytest.approx(4.0)
    assert generation_bound(work, [slow, slow.scaled(3.0)], 1) == pytest.approx(6.0)
    assert generation_bound(work, [CostModel()], 1) == 0.0


def test_an_answer_alone_takes_its_steps_and_its_context() -> None:
    model = CostModel(step_s=0.01, kv_s=0.001)
    assert alone_s(np.array([3]), np.array([10]), [model]) == pytest.approx([0.03 + 0.001 * 23])
    faster_in_twos = CostModel(table=((1, 0.02), (2, 0.01)))
    assert alone_s(np.array([4]), np.array([10]), [model, faster_in_twos]) == pytest.approx([0.04])


def test_windows_of_the_longest_answers_follow_each_other() -> None:
    assert longest_bound([10.0, 1.0, 1.0, 10.0], [1.0] * 4, 0) == 26.0
    assert longest_bound([10.0, 1.0, 1.0, 10.0], [1.0] * 4, 1) == 23.0
    assert longest_bound([10.0, 1.0, 1.0, 10.0], [1.0] * 4, 3) == 14.0
    assert longest_bound([], [], 3) == 0.0


def test_the_trainer_waits_for_its_first_answers_only() -> None:
    assert trainer_bound([2.0, 3.0], 5.0) == 10.0


def test_the_largest_bound_is_named() -> None:
    assert (Bounds(1.0, 3.0, 2.0).best_s, Bounds(1.0, 3.0, 2.0).binding) == (3.0, "trainer")
