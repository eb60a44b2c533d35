"""Cost models: what they say between their points, what they refuse, and that files keep them."""

from dataclasses import replace

import pytest
from drumroll_planner.cost_presets import DEFAULT, preset, preset_names
from drumroll_planner.costs import CostModel, FitError
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import UserError


def test_the_table_is_met_at_its_points_and_interpolated_between(costs: CostModel) -> None:
    assert [costs.base(batch) for batch in (1, 2, 4, 8)] == [0.010, 0.011, 0.012, 0.016]
    assert costs.base(6) == pytest.approx(0.014)
    assert costs.base(0) == costs.base(1)
    assert costs.base(10) == pytest.approx(0.017)
    assert costs.bases(2) == [0.010, 0.010, 0.011]


def test_a_table_that_begins_late_holds_below_its_first_point() -> None:
    assert CostModel(table=((4, 0.02), (8, 0.03))).base(1) == 0.02


def test_without_a_table_a_line_serves() -> None:
    model = CostModel(step_s=0.01, sequence_s=0.001, kv_s=1e-6)
    assert model.decode(10, 1000) == pytest.approx(0.021)


def test_prefill_and_training_add_up(costs: CostModel) -> None:
    assert costs.prefill(0) == 0.0
    assert costs.prefill(100) == pytest.approx(0.001 + 100 * 2e-5 + 4950e-9)
    assert costs.prefill(100, before=10) - costs.prefill(100) == pytest.approx(1000e-9)
    assert costs.train(1000) == pytest.approx(0.4)
    assert costs.train(1000, padded=2000) == pytest.approx(0.6)


@given(batch=st.integers(1, 40), factor=st.floats(0.1, 10.0))
def test_scaling_scales_every_step(batch: int, factor: float) -> None:
    model = preset()
    assert model.scaled(factor).decode(batch, 5000) == pytest.approx(factor * model.decode(batch, 5000))
    assert model.scaled(factor).train(100) == model.train(100)


def test_files_keep_everything(costs: CostModel) -> None:
    model = replace(costs, name="x", source="y", errors=(("decode", FitError(0.01, 0.02, 30)),))
    assert CostModel.from_json(model.to_json()) == model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expects an object"),
        ('{"format": 9}', "another format"),
        ('{"speed": 1}', "speed is not a field"),
        ('{"kv_s": "much"}', "kv_s is 'much'"),
        ('{"table": [[1]]}', "table is"),
        ('{"kv_s": -1}', "kv_s is -1"),
        ('{"table": [[2, 0.1], [1, 0.2]]}', "batch sizes"),
        ('{"table": [[1, -0.1]]}', "has times"),
        ('{"errors": [["decode", {"mean": 1}]]}', "errors is"),
    ],
)
def test_what_is_no_cost_model_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        CostModel.from_json(text)


def test_every_preset_is_plausible() -> None:
    for name in preset_names():
        model = preset(name)
        assert 0.004 < model.decode(1, 1024) < 0.03
        assert model.decode(1, 1024) < model.decode(128, 128 * 2048)
        assert model.prefill(8192) > 3.9 * model.prefill(2048)
        assert CostModel.from_json(model.to_json()) == model


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=DEFAULT):
        preset("tpu")
