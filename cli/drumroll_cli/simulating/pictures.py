"""Pictures of a simulation: who did what when, and what more replicas would do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from drumroll_planner.cost_fit import DecodeMeasurement
from drumroll_planner.costs import CostModel
from drumroll_planner.sim import SimResult
from drumroll_planner.sim.scaling import Point

from drumroll_cli.local.picture import BLUE, FAINT, GREEN, INK, ORANGE, RED, running_samples

_MOST_LANES = 16


def draw(result: SimResult, points: Sequence[Point], out: Path, *, title: str, max_lag: int) -> None:
    """Timeline of one fleet, and below it the scaling curve where there are several sizes."""
    pyplot = _pyplot()
    lanes = min(_MOST_LANES, len(result.rollout_idle))
    heights = [0.42 * (lanes + 1), 1.2, 1.2] + ([3.0] if len(points) > 1 else [])
    figure, axes = pyplot.subplots(
        len(heights), 1, figsize=(10, 1.6 + sum(heights)), height_ratios=heights, constrained_layout=True
    )
    figure.suptitle(title, color=INK)
    _lanes(axes[0], result, lanes)
    _queue(axes[1], result)
    _lag(axes[2], result, max_lag)
    for axis in axes[:3]:
        axis.set_xlim(0, result.makespan_s)
    axes[2].set_xlabel("simulated seconds")
    if len(points) > 1:
        _scaling(axes[3], points)
    _save(figure, axes, out)


def draw_costs(model: CostModel, measurements: Sequence[DecodeMeasurement], out: Path, *, title: str) -> None:
    """Measured decode steps and the fitted curves through them, by context."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8, 4.5), constrained_layout=True)
    figure.suptitle(title, color=INK)
    contexts = sorted({round(each.kv_tokens / each.batch, -1) for each in measurements})
    largest = max(each.batch for each in measurements)
    for place, context in enumerate(contexts):
        color = (BLUE, ORANGE, GREEN, RED, INK)[place % 5]
        own = [each for each in measurements if round(each.kv_tokens / each.batch, -1) == context]
        axis.plot([each.batch for each in own], [1e3 * each.seconds for each in own], "o", color=color, markersize=4)
        batches = np.unique(np.geomspace(1, largest, 40).astype(int))
        curve = [1e3 * model.decode(int(batch), batch * context) for batch in batches]
        axis.plot(batches, curve, color=color, linewidth=1, label=f"{context:.0f} tokens of context each")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("running sequences")
    axis.set_ylabel("decode step, ms")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=8)
    _save(figure, [axis], out)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, axes: Sequence[Any], out: Path) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(out)
    _pyplot().close(figure)


def _lanes(axis: Any, result: SimResult, lanes: int) -> None:
    for lane in range(lanes):
        own = result.spans[result.spans[:, 0] == lane]
        times, running = running_samples([(start, end) for _, start, end, _ in own.tolist()])
        top, base = max(running, default=1) or 1, lanes - lane
        heights = base + 0.8 * np.asarray(running) / top
        axis.fill_between(times, base, heights, step="post", color=BLUE, alpha=0.7, linewidth=0)
        loads = result.loads[result.loads[:, 0] == lane]
        axis.vlines(loads[:, 2], base, base + 0.9, color=RED, linewidth=0.6)
        axis.annotate(
            f"max {top}", (1.0, base + 0.4), xycoords=("axes fraction", "data"), fontsize=7, color=INK, va="center"
        )
    spans = [(span.start_s, span.trained_s - span.start_s) for span in result.steps]
    axis.broken_barh(spans, (0.0, 0.8), color=ORANGE, linewidth=0)
    names = [f"rollout-{lane}" for lane in range(lanes)]
    axis.set_yticks([place + 0.4 for place in range(lanes + 1)], ["trainer", *reversed(names)], fontsize=7)
    axis.set_ylim(0, lanes + 1)
    axis.set_title("filled: samples running; red: weights loaded; orange: training", fontsize=8, loc="left", color=INK)


def _queue(axis: Any, result: SimResult) -> None:
    axis.step(result.queue[:, 0], result.queue[:, 1], where="post", color=GREEN, linewidth=1)
    axis.set_ylabel("groups\nwaiting", fontsize=8)
    axis.set_ylim(bottom=0)


def _lag(axis: Any, result: SimResult, max_lag: int) -> None:
    times = [span.start_s for span in result.steps]
    axis.fill_between(times, 0, [span.lag_max for span in result.steps], step="post", color=FAINT, alpha=0.5)
    axis.step(times, [span.lag_mean for span in result.steps], where="post", color=ORANGE, linewidth=1)
    axis.axhline(max_lag, color=RED, linewidth=1, linestyle="--")
    axis.set_ylabel("policy lag\n(mean, max)", fontsize=8)
    axis.set_ylim(-0.2, max_lag + 0.7)


def _scaling(axis: Any, points: Sequence[Point]) -> None:
    sizes = [point.replicas for point in points]
    steps = [len(point.result.steps) for point in points]
    bounds = [point.result.bounds for point in points]
    axis.plot(sizes, [point.step_s for point in points], "o-", color=BLUE, label="simulated")
    for name, values, color in (
        ("generation bound", [each.generation_s for each in bounds], GREEN),
        ("trainer bound", [each.trainer_s for each in bounds], ORANGE),
        ("longest-answer bound", [each.longest_s for each in bounds], RED),
    ):
        seconds = [value / count for value, count in zip(values, steps, strict=True)]
        axis.plot(sizes, seconds, "--", color=color, linewidth=1, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.set_xlabel("replicas")
    axis.set_ylabel("seconds a step")
    axis.legend(frameon=False, fontsize=8)
