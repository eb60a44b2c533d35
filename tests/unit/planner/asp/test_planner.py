"""The planner: choice by simulation, determinism, files, words."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_planner.asp import AspPlan, AspPlanner, Choosing, FleetModel, Shape, planfile, pressure, shuffled
from drumroll_planner.asp.choose import choose, cycle_of, is_sure, shapes
from drumroll_planner.asp.explanation import Explanation
from drumroll_planner.asp.pressure import window_times
from drumroll_planner.asp.representative import micro_batches, padding, representativeness
from drumroll_planner.asp.telling import candidates, difference, explained, sketch, summary
from drumroll_planner.costs import CostModel
from drumroll_planner.lengths import Groups, LengthModels, LengthReport, Outlook, Prompts
from drumroll_planner.plan import plan_digest
from drumroll_planner.planners import ShufflePlanner
from drumroll_planner.rules import Rules
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import CorruptError

Make = Callable[..., Any]
QUICK = Choosing(budget_samples=12_000, num_futures=2)


@pytest.fixture(scope="module")
def planned(fleet: FleetModel, job_rules: Rules, make_outlook: Make, make_inputs: Make) -> AspPlan:
    planner = AspPlanner(rules=job_rules, fleet=fleet, choosing=QUICK)
    return planner.plan(make_inputs(512, make_outlook(512)), _report())


def _report() -> LengthReport:
    models = LengthModels(Prompts.of(np.full(64, 4, np.int32)), limit=4096)
    lengths = np.random.default_rng(0).lognormal(5, 1, (64, 4)).astype(np.float32)
    for _ in range(2):
        models.observe(Groups(np.arange(64), lengths, np.zeros((64, 4), bool), np.zeros(64, np.float32)))
    return models.report()


def test_where_long_answers_set_the_pace_they_are_batched(planned: AspPlan) -> None:
    told = planned.explanation
    assert told.choice.shape is not None
    assert told.choice.gain > 0.08
    assert told.choice.pressure.theta > 1.0
    assert told.choice.bound_s <= told.iteration_s
    assert told.mix.between_steps > 2 * told.mix.shuffled_steps
    assert told.mix.over_cycle < told.mix.between_steps / 4
    assert told.padding.sorted < told.padding.as_drawn
    assert sorted(planned.rows) == list(range(512))
    assert planned.tokens.min() >= 1
    assert planned.target_lag == 1
    assert list(told.ends_s) == sorted(told.ends_s)


def test_the_same_inputs_give_the_same_bytes(
    planned: AspPlan, fleet: FleetModel, job_rules: Rules, make_outlook: Make, make_inputs: Make
) -> None:
    planner = AspPlanner(rules=job_rules, fleet=fleet, choosing=QUICK)
    again = planner.plan(make_inputs(512, make_outlook(512)), _report())
    assert planfile.encode(again) == planfile.encode(planned)
    other = planner.plan(make_inputs(512, make_outlook(512), seed=1))
    assert other.digest != planned.digest


@pytest.mark.parametrize("threshold", [0.99])
def test_a_gain_below_the_threshold_leaves_first_come(
    threshold: float, fleet: FleetModel, job_rules: Rules, make_outlook: Make, make_inputs: Make
) -> None:
    planner = AspPlanner(rules=job_rules, fleet=fleet, choosing=replace(QUICK, threshold=threshold))
    plan = planner.plan(make_inputs(256, make_outlook(256)))
    assert plan.explanation.choice.shape is None
    assert "below the threshold" in plan.explanation.choice.reason
    assert np.array_equal(plan.rows, shuffled(256, seed=0, epoch=1))


def test_where_the_trainer_sets_the_pace_nothing_is_reordered(
    fleet: FleetModel, job_rules: Rules, make_outlook: Make, make_inputs: Make
) -> None:
    slow = replace(fleet, costs=tuple(replace(costs, train_step_s=300.0) for costs in fleet.costs))
    plan = AspPlanner(rules=job_rules, fleet=slow, choosing=QUICK).plan(make_inputs(256, make_outlook(256)))
    assert plan.explanation.choice.shape is None
    assert "the trainer sets the pace" in plan.explanation.choice.reason


def test_without_an_outlook_or_with_a_constant_one_it_is_the_shuffle(
    fleet: FleetModel, job_rules: Rules, make_inputs: Make
) -> None:
    planner = AspPlanner(rules=job_rules, fleet=fleet)
    for outlook in (None, Outlook.constant(100, limit=500)):
        plan = planner.plan(make_inputs(100, outlook))
        assert plan.digest == ShufflePlanner().plan(make_inputs(100)).digest
        assert not plan.explanation.choice.trials
    assert len(planner.plan(make_inputs(0))) == 0


def test_cycles_limited_to_one_step_are_never_made(
    fleet: FleetModel, job_rules: Rules, make_outlook: Make, make_inputs: Make
) -> None:
    planner = AspPlanner(rules=job_rules, fleet=fleet, choosing=replace(QUICK, longest_cycle=1))
    plan = planner.plan(make_inputs(128, make_outlook(128)))
    assert plan.explanation.choice.shape is None
    assert "limited to one step" in plan.explanation.choice.reason


def test_an_open_target_is_the_smallest_that_is_as_good(
    fleet: FleetModel, job_rules: Rules, make_outlook: Make
) -> None:
    rules = replace(job_rules, max_policy_lag=4, target_policy_lag=2)
    choosing = replace(QUICK, free_target=True)
    assert choosing.targets(rules) == (4, 3, 2, 1)
    assert Choosing().targets(rules) == (2,)
    assert choosing.targets(replace(rules, max_policy_lag=0, target_policy_lag=0)) == (0,)
    choice = choose(
        make_outlook(512), np.full(512, 40, np.int32), rules=rules, fleet=fleet, choosing=choosing, seed=0, epoch=1
    )
    mine = [trial for trial in choice.trials if trial.shape == choice.shape]
    best = min(trial.iteration_s for trial in mine)
    good = [trial.target for trial in mine if trial.iteration_s <= 1.02 * best]
    assert choice.target == min(good)


def test_plans_of_any_size_go_through_their_files_unchanged(
    fleet: FleetModel, job_rules: Rules, planned: AspPlan, make_inputs: Make, tmp_path: Path
) -> None:
    planner = AspPlanner(rules=job_rules, fleet=fleet)
    for plan in (planned, planner.plan(make_inputs(0)), planner.plan(make_inputs(77))):
        path = planfile.write(plan, tmp_path)
        assert path.name == planfile.file_name(plan.digest)
        again = planfile.read(path)
        assert np.array_equal(again.rows, plan.rows)
        assert np.array_equal(again.tokens, plan.tokens)
        assert again.explanation == plan.explanation
        assert planfile.encode(again) == path.read_bytes()
        assert Explanation.from_dict(json.loads(json.dumps(plan.explanation.to_dict()))) == plan.explanation
        parts = list(planfile.stream(path, tickets=50))
        assert [row for _, rows, _ in parts for row in rows] == plan.rows.tolist()
        assert [count for _, _, tokens in parts for count in tokens] == plan.tokens.tolist()
        assert [first for first, _, _ in parts] == list(range(0, len(plan), 50))
    assert len(planfile.encode(planned)) < 8 * len(planned) + 20_000


def test_rows_beyond_32_bits_are_kept(planned: AspPlan) -> None:
    rows = planned.rows + (1 << 33)
    wide = replace(planned, rows=rows, digest=plan_digest(rows))
    assert np.array_equal(planfile.decode(planfile.encode(wide)).rows, rows)


def test_damaged_plans_are_refused(planned: AspPlan, tmp_path: Path) -> None:
    data = planfile.encode(planned)
    for bad in (b"", b"x" * 100, data[:-1] + b"?", data[:400] + b"!" + data[401:]):
        with pytest.raises(CorruptError):
            planfile.decode(bad)
    lying = planfile.encode(replace(planned, digest="0" * 64))
    with pytest.raises(CorruptError, match="another digest"):
        planfile.decode(lying)
    (tmp_path / "x.plan").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptError, match="not a plan file"):
        list(planfile.stream(tmp_path / "x.plan"))


def test_a_plan_is_told_within_eighty_columns(
    planned: AspPlan, fleet: FleetModel, job_rules: Rules, make_inputs: Make
) -> None:
    told = planned.explanation
    lines = [*summary(planned), *sketch(told), *candidates(told), *explained(planned)]
    assert max(len(line) for line in lines) <= 80
    text = " ".join(" ".join(lines).split())
    for words in ("32 steps of 16", "Why: it is predicted to save", "theta", "cycleSteps", "padding", "rank corr."):
        assert words in text
    plain = AspPlanner(rules=job_rules, fleet=fleet).plan(make_inputs(64))
    assert sketch(plain.explanation) == []
    assert candidates(plain.explanation) == []
    assert "nothing is predicted" in " ".join(explained(plain))


def test_differences_name_what_changed(
    planned: AspPlan, fleet: FleetModel, job_rules: Rules, make_inputs: Make
) -> None:
    planner = AspPlanner(rules=job_rules, fleet=fleet)
    plain = planner.plan(make_inputs(512))
    same = difference(planned, planned)
    assert same.same
    assert same.lines == ("the order is the same",)
    other = difference(planned, plain)
    assert not other.same
    assert other.moved_steps > 5
    assert other.stayed < 0.2
    assert any(line.startswith("order: cycles of") for line in other.lines)
    shorter = difference(planned, planner.plan(make_inputs(100)))
    assert any("not the same ones" in line for line in shorter.lines)
    assert difference(planner.plan(make_inputs(0)), planner.plan(make_inputs(0))).same


def test_pressure_says_what_sets_the_pace(fleet: FleetModel, job_rules: Rules) -> None:
    lengths = np.full((160, 4), 100, np.int32)
    flat = pressure(fleet, job_rules, lengths=lengths, prompt_tokens=40.0)
    lengths[::16, 0] = 5000
    tail = pressure(fleet, job_rules, lengths=lengths, prompt_tokens=40.0)
    assert tail.theta > 10 * flat.theta
    assert tail.longest_s == pytest.approx(5000 * 0.01001, rel=0.01)
    slow = replace(fleet, costs=tuple(replace(costs, train_step_s=99.0) for costs in fleet.costs))
    assert pressure(slow, job_rules, lengths=lengths, prompt_tokens=40.0).limited_by == "the trainer sets the pace"
    short = pressure(fleet, job_rules, lengths=np.full((160, 4), 2, np.int32), prompt_tokens=4000.0)
    assert "sets the pace" in short.limited_by


def test_a_long_answer_holds_up_bound_plus_one_steps() -> None:
    longest = np.full(12, 1.0)
    longest[4] = longest[5] = 20.0
    together = window_times(longest, least_s=1.0, bound=2)
    longest[5], longest[10] = 1.0, 20.0
    apart = window_times(longest, least_s=1.0, bound=2)
    assert together[-1] < apart[-1]
    assert window_times(np.zeros(3), least_s=2.0, bound=0).tolist() == [2.0, 4.0, 6.0]


def test_doubling_the_costs_doubles_what_generation_takes(fleet: FleetModel, job_rules: Rules) -> None:
    lengths = np.random.default_rng(0).integers(10, 500, (160, 4)).astype(np.int32)
    one = pressure(fleet, job_rules, lengths=lengths, prompt_tokens=40.0)
    double = replace(fleet, costs=tuple(costs.scaled(2.0) for costs in fleet.costs))
    two = pressure(double, job_rules, lengths=lengths, prompt_tokens=40.0)
    assert two.generation_s == pytest.approx(2 * one.generation_s)
    assert two.longest_s == pytest.approx(2 * one.longest_s)


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=40), size=st.integers(1, 9))
def test_sorting_before_the_cut_never_pads_more(lengths: list[int], size: int) -> None:
    whole = lengths * size
    random = np.random.default_rng(len(lengths)).permutation(len(whole))
    values = np.array(whole, np.int32)[random]
    places = micro_batches(values, size)
    assert sorted(places.tolist()) == list(range(len(values)))
    assert padding(values, places, size) <= padding(values, np.arange(len(values)), size) + 1e-12
    assert padding(values, places, 1) == 0.0


def test_micro_batches_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="write 1 or more"):
        micro_batches(np.ones(3, np.int32), 0)
    assert padding(np.zeros(0, np.int32), np.zeros(0, np.int64), 2) == 0.0


def test_representativeness_of_little_is_nothing() -> None:
    empty = representativeness(np.zeros(10, np.int32), per_step=2, cycle=2)
    assert (empty.between_steps, empty.over_cycle) == (0.0, 0.0)
    short = representativeness(np.arange(1, 9, dtype=np.int32), per_step=2, cycle=4)
    assert short.over_cycle == 0.0
    assert short.between_steps > 0.0


def test_shapes_fit_the_pass_and_the_limit() -> None:
    assert shapes(16, 3) == ()
    assert shapes(1, 100) == ()
    assert shapes(8, 100) == (Shape(4, 1), Shape(4, 2), Shape(4, 4), Shape(8, 2), Shape(8, 4), Shape(8, 8))
    assert cycle_of(37, Shape(16, 8)) == 19
    assert FleetModel((CostModel(name="a"), CostModel(name="b"))).resized(3).num_replicas == 3


@pytest.mark.parametrize(
    ("gains", "sure"),
    [
        ([0.20, 0.21, 0.19], True),
        ([0.07, 0.07, 0.07], False),
        ([0.02, 0.30, 0.03], False),
        ([0.20, 0.21], True),
        ([0.05, 0.15], False),
        ([0.5], False),
        ([0.4, 0.4, -0.01, 0.4], False),
    ],
)
def test_a_gain_is_trusted_above_the_threshold_and_above_chance(gains: list[float], sure: bool) -> None:
    assert is_sure(gains, 0.08) is sure
