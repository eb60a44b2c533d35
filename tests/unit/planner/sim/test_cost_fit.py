"""Fits find the costs that made the measurements, say their error, and hold on what they have not seen."""

from dataclasses import replace

import numpy as np
import pytest
from drumroll_planner.cost_fit import (
    DecodeMeasurement,
    EngineSettings,
    PrefillMeasurement,
    TracedRequest,
    TrainMeasurement,
    fit_decode,
    fit_prefill,
    fit_trace,
    fit_train,
    nonnegative_least_squares,
    replay_trace,
)
from drumroll_planner.costs import CostModel
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import DataError

BATCHES = (1, 2, 4, 8, 12, 32)


def measured(model: CostModel, noise: float = 0.0) -> list[DecodeMeasurement]:
    generator = np.random.default_rng(1)
    return [
        DecodeMeasurement(batch, kv, model.decode(batch, kv) * (1 + noise * generator.standard_normal()))
        for batch in BATCHES
        for kv in (100 * batch, 1000 * batch, 4000 * batch)
    ]


def test_decode_costs_are_found_again(costs: CostModel) -> None:
    straight = replace(costs, table=(*costs.table, (32, costs.base(32))))
    fitted, error = fit_decode(measured(straight))
    for batch in (1, 2, 3, 8, 12, 32, 64):
        assert fitted.base(batch) == pytest.approx(straight.base(batch), rel=0.03)
    assert fitted.kv_s == pytest.approx(costs.kv_s, rel=0.02)
    assert error.p90 < 0.02
    assert error.count == 18
    assert fitted.errors == (("decode", error),)


def test_noise_shows_in_the_error(costs: CostModel) -> None:
    _, error = fit_decode(measured(costs, noise=0.05))
    assert 0.005 < error.median < 0.1
    assert error.median <= error.p90


def test_sizes_that_are_no_knots_still_make_a_table(costs: CostModel) -> None:
    fitted, _ = fit_decode([DecodeMeasurement(3, 100.0, costs.decode(3, 100))])
    assert fitted.decode(3, 100) == pytest.approx(costs.decode(3, 100))
    with pytest.raises(DataError, match="no decode step"):
        fit_decode([])


def test_prefill_and_training_costs_are_found_again(costs: CostModel) -> None:
    sizes = (16, 64, 256, 1024, 4096)
    prefills = [PrefillMeasurement(size, costs.base(1) + costs.prefill(size)) for size in sizes]
    fitted, error = fit_prefill(replace(costs, prefill_s=0.0, chunk_s=0.0, prefill_pair_s=0.0), prefills)
    assert fitted.prefill(2000) == pytest.approx(costs.prefill(2000), rel=0.01)
    assert error.p90 < 0.01
    steps = [TrainMeasurement(n, 2 * n, costs.train(n)) for n in (100, 1000, 5000)]
    fitted, error = fit_train(fitted, steps)
    assert fitted.train(3000) == pytest.approx(costs.train(3000))
    assert fitted.train(0, padded=6000) == pytest.approx(costs.train(3000))
    assert [name for name, _ in fitted.errors] == ["prefill", "train"]


def test_costs_of_a_whole_run_are_found_from_half_of_its_requests(costs: CostModel) -> None:
    generator = np.random.default_rng(0)
    settings_ = EngineSettings(max_concurrent=12, chunk_tokens=128)
    arrivals = np.sort(generator.uniform(0, 20, 80))
    asked = [
        TracedRequest(float(at), int(prompt), int(length), 0.0, 0.0)
        for at, prompt, length in zip(
            arrivals, generator.integers(5, 300, 80), generator.integers(20, 400, 80), strict=True
        )
    ]
    _, times = replay_trace(asked, settings_, costs)
    run = [request._replace(first_token_s=a, last_token_s=b) for request, (a, b) in zip(asked, times, strict=True)]
    odd = np.arange(80) % 2 == 1
    fitted, error = fit_trace(run, settings_, used=odd, start=costs.scaled(1.6), knots=(1, 2, 4, 8))
    _, again = replay_trace(run, settings_, fitted)
    held_out = np.array([b - request.arrival_s for request, (_, b) in zip(run, again, strict=True)])[~odd]
    true = np.array([request.last_token_s - request.arrival_s for request in run])[~odd]
    assert np.abs(held_out / true - 1).mean() < 0.02
    assert error.median < 0.02
    assert fitted.errors == (("trace", error),)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_least_squares_without_negatives_meets_its_conditions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    features = np.abs(generator.standard_normal((12, 5)))
    features[:, 3] = features[:, 1]
    target = generator.standard_normal(12)
    weights = nonnegative_least_squares(features, target)
    gradient = features.T @ (target - features @ weights)
    # The best there is: no weight can grow to advantage, and those that are used have no slope left.
    assert (weights >= 0).all()
    assert (gradient <= 1e-6).all()
    assert np.abs(gradient[weights > 1e-9]).max(initial=0.0) < 1e-6
