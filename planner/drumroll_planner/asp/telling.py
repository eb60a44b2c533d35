"""Plans in words, in at most 80 columns: sentences, a table of candidates, a sketch of the pass, a difference."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumroll_planner.asp.explanation import Explanation
from drumroll_planner.asp.planner import AspPlan
from drumroll_planner.lengths.models import LengthReport
from drumroll_planner.lengths.scoring import Score

WIDTH = 78
_BARS = " ▁▂▃▄▅▆▇█"
_MODELS = {
    "none": "one distribution for all prompts",
    "history": "earlier answers of the same prompt",
    "features": "earlier answers, shrunk to a regression on the prompt's features",
    "ranker": "earlier answers, shrunk to a pairwise ranker on the prompt's tokens",
}


def summary(plan: AspPlan) -> list[str]:
    """What was decided, and what it expects: a few lines."""
    told = plan.explanation
    setting, choice = told.setting, told.choice
    steps = setting.num_prompts // max(1, setting.prompts_per_step)
    order = "in a seeded shuffle (first come, first served)" if choice.shape is None else f"in {choice.shape}"
    lines = [
        f"Pass {setting.epoch}: {setting.num_prompts:,} prompts in {steps:,} steps of {setting.prompts_per_step}, "
        f"{setting.group_size} answers each, on {setting.num_replicas} replicas ({setting.costs}), {order}.",
        f"Why: {choice.reason}.",
    ]
    if told.iteration_s:
        first = [trial for trial in choice.trials if trial.shape is None and trial.target == choice.target]
        against = f"; first come {_seconds(first[0].iteration_s)}" if first and choice.shape is not None else ""
        lines.append(
            f"Expected: {_seconds(told.iteration_s)} a step{against}; no schedule of this order's answers gets below "
            f"{_seconds(choice.bound_s)}. Target lag {choice.target} of at most {setting.max_policy_lag}, mean lag "
            f"{choice.chosen.lag_mean if choice.chosen else 0:.1f}."
        )
    return wrapped(lines)


def explained(plan: AspPlan) -> list[str]:
    """Everything else that went into the decision."""
    told = plan.explanation
    lines = []
    force = told.choice.pressure
    if force is not None:
        lines.append(
            f"Pace: a step alone would take {_seconds(force.generation_s)} to generate, {_seconds(force.training_s)} "
            f"to train, and {_seconds(force.longest_s)} for its longest answer. theta = longest / (bound + 1) / the "
            f"larger of the others = {force.theta:.2f}: {force.limited_by}."
        )
    mix = told.mix
    if mix.shuffled_steps:
        lines.append(
            f"Mix: mean predicted length differs by {mix.between_steps:.0%} from step to step (a shuffle: "
            f"{mix.shuffled_steps:.0%}) and by {mix.over_cycle:.1%} over {mix.cycle} steps; cycles are limited to "
            f"{told.setting.longest_cycle} steps (scheduler.cycleSteps)."
        )
    if told.padding is not None:
        pad = told.padding
        lines.append(
            f"Padding: micro-batches of {pad.micro_batch} are {pad.as_drawn:.0%} padding as drawn and {pad.sorted:.0%} "
            "when the minibatch is sorted before the cut."
        )
    if told.choice.steps_simulated:
        lines.append(
            f"Chosen on {told.choice.steps_simulated} steps of a sample, in {told.choice.futures} futures drawn from "
            f"the predictions; another order must save {told.setting.threshold:.0%}."
        )
    return wrapped(lines) + _lengths(told.lengths)


def candidates(told: Explanation) -> list[str]:
    """The table of what was simulated."""
    choice = told.choice
    if not choice.trials:
        return []
    own = min((trial.iteration_s for trial in choice.trials if trial.shape is None), default=1.0)
    lines = [f"{'candidate':<44}{'target':>7}{'s/step':>9}{'time':>8}{'lag':>7}"]
    for trial in sorted(choice.trials, key=lambda trial: trial.iteration_s):
        mark = "*" if (trial.shape, trial.target) == (choice.shape, choice.target) else " "
        change = trial.iteration_s / own - 1.0
        lines.append(
            f"{mark} {trial.name:<42}{trial.target:>7}{trial.iteration_s:>9.3g}{change:>+8.1%}{trial.lag_mean:>7.2f}"
        )
    return [*lines, "time: against the best first-come row; * chosen"]


def sketch(told: Explanation, *, width: int = WIDTH) -> list[str]:
    """Expected longest answer of each minibatch along the pass, as bars."""
    if not told.profile or not told.mean_tokens:
        return []
    values = np.array(told.profile)
    edges = np.unique(np.linspace(0, len(values), min(width, len(values)) + 1).round().astype(int))
    tops = np.maximum.reduceat(values, edges[:-1])
    scale = tops.max() or 1.0
    rows = []
    for row in range(3, -1, -1):
        filled = np.clip(tops / scale * 4 - row, 0.0, 1.0)
        rows.append("".join(_BARS[round(float(share) * 8)] for share in filled).rstrip())
    end = f", {_seconds(told.ends_s[-1])} for the pass" if told.ends_s and told.ends_s[-1] else ""
    return [*rows, f"expected longest answer of a minibatch, up to {scale:,.0f} {told.unit}{end}"]


def _lengths(report: LengthReport | None) -> list[str]:
    if report is None or not report.num_answers:
        return wrapped(["Lengths: no answers were seen; nothing is predicted."])
    drift = f"{abs(report.drift):.0%} {'longer' if report.drift >= 0 else 'shorter'}"
    lines = wrapped(
        [
            f"Lengths: {report.num_answers:,} answers seen, {report.censored_share:.1%} of them cut. Prompts answered "
            f"before: {_MODELS[report.again]}. New prompts: {_MODELS[report.first]}. Since the last plan answers have "
            f"become {drift}; a prompt's own length moves by {report.moved:.0%} from pass to pass."
        ]
    )
    boards = (
        ("answered before", report.again_scores),
        ("new prompts", report.first_scores),
        ("after half a group", report.sibling_scores),
    )
    rows = [line for name, scores in boards for line in _board(name, scores)]
    head = f"{'on answers not seen before':<34}{'model':<10}{'groups':>8}{'rank corr.':>12}{'quantile loss':>14}"
    return [*lines, head, *rows] if rows else lines


def _board(name: str, scores: Sequence[Score]) -> list[str]:
    return [
        f"  {name:<32}{score.model:<10}{score.num_groups:>8}{score.rank_correlation:>12.2f}{score.quantile_loss:>14.4f}"
        for score in scores
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two plans of the same rows are apart."""

    same: bool
    moved_steps: float
    """Mean distance between a prompt's minibatches, in steps."""
    stayed: float
    """Share of prompts that are in the same minibatch."""
    lines: tuple[str, ...]


def difference(first: AspPlan, second: AspPlan) -> Difference:
    """What changed from one plan to another."""
    a, b = first.explanation, second.explanation
    changes = []
    for name, old, new in (
        ("pass", first.epoch, second.epoch),
        ("order", a.choice.shape or "first come", b.choice.shape or "first come"),
        ("target lag", a.choice.target, b.choice.target),
        ("replicas", a.setting.num_replicas, b.setting.num_replicas),
        ("costs", a.setting.costs, b.setting.costs),
        ("expected time of a step", _seconds(a.iteration_s), _seconds(b.iteration_s)),
        ("mean predicted length", f"{a.mean_tokens:,.0f}", f"{b.mean_tokens:,.0f}"),
    ):
        if old != new:
            changes.append(f"{name}: {old} -> {new}")
    if sorted(first.rows.tolist()) != sorted(second.rows.tolist()):
        changes.append(f"rows: {len(first):,} prompts -> {len(second):,} prompts, not the same ones")
        return Difference(False, float("nan"), 0.0, tuple(changes))
    per_step = a.setting.prompts_per_step
    before, after = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
    places = np.argsort(np.argsort(first.rows, kind="stable"), kind="stable")
    before[places] = np.arange(len(first)) // per_step
    places = np.argsort(np.argsort(second.rows, kind="stable"), kind="stable")
    after[places] = np.arange(len(second)) // per_step
    moved = float(np.abs(before - after).mean()) if len(first) else 0.0
    stayed = float((before == after).mean()) if len(first) else 1.0
    same = first.digest == second.digest
    told = f"{stayed:.0%} of the prompts stay in their step; on average a prompt moves by {moved:.1f} steps"
    changes.append("the order is the same" if same else told)
    return Difference(same, moved, stayed, tuple(changes))


def wrapped(lines: Sequence[str]) -> list[str]:
    """Each text in lines of at most WIDTH."""
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]


def _seconds(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s"
