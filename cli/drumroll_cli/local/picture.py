"""One picture of a run: reward, lag, queue, and what each replica and the trainer did when."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

INK, FAINT, BLUE, ORANGE, GREEN, RED = "#222222", "#bbbbbb", "#3b6fb6", "#d9822b", "#3d9960", "#b53a3a"
RECENT = 10
"""Steps that the smoothed reward averages over."""

Rows = list[dict[str, Any]]


def draw(metrics: Path, timeline: Path, out: Path, *, title: str, max_lag: int) -> bool:
    """Write the picture; False where no step was trained, so that there is nothing to show."""
    steps = read_rows(metrics)
    if not steps:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    events = read_rows(timeline)
    origin = min(row[key] for row in (*steps, *events) for key in ("time", "start") if key in row)
    lanes = sorted({row["replica"] for row in events if row["kind"] == "sample"})
    heights = [2.0, 1.3, 1.3, 0.5 * (len(lanes) + 1)]
    figure, axes = pyplot.subplots(
        4, 1, sharex=True, figsize=(10, 1.2 + sum(heights)), height_ratios=heights, constrained_layout=True
    )
    figure.suptitle(title, color=INK)
    _reward(axes[0], steps, read_rows(metrics.with_name("eval.jsonl")), origin)
    _lag(axes[1], steps, origin, max_lag)
    _queue(axes[2], events, steps, origin)
    _lanes(axes[3], events, lanes, origin)
    axes[3].set_xlabel("seconds since the scheduler began")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    figure.savefig(out)
    pyplot.close(figure)
    return True


def read_rows(path: Path) -> Rows:
    """Rows of a JSONL file; a last line that a crash cut off is left out."""
    rows: Rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _reward(axis: Any, steps: Rows, evaluations: Rows, origin: float) -> None:
    times = [row["time"] - origin for row in steps]
    rewards = [row.get("reward/mean") or 0.0 for row in steps]
    axis.plot(times, rewards, ".", color=FAINT, markersize=4, label="step")
    axis.plot(times, trailing_mean(rewards, RECENT), color=BLUE, label=f"mean of {RECENT} steps")
    scored = [row for row in evaluations if row["reward_mean"] is not None]
    if scored:
        times, means = [row["time"] - origin for row in scored], [row["reward_mean"] for row in scored]
        axis.plot(times, means, "o", color=GREEN, markersize=5, label="held-out prompts")
    axis.set_ylabel("reward")
    _legend(axis)


def _legend(axis: Any) -> None:
    """Above the curves, where it hides none of them."""
    axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.97), borderaxespad=0.0, fontsize=8, ncols=3)


def _lag(axis: Any, steps: Rows, origin: float, max_lag: int) -> None:
    rows = [row for row in steps if "lag_mean" in row]
    times = [row["time"] - origin for row in rows]
    axis.fill_between(
        times,
        [r["lag_min"] for r in rows],
        [r["lag_max"] for r in rows],
        step="mid",
        color=FAINT,
        alpha=0.5,
        linewidth=0,
    )
    axis.plot(times, [row["lag_mean"] for row in rows], color=ORANGE, label="mean (band: min to max)")
    axis.axhline(max_lag, color=RED, linewidth=1, linestyle="--", label="bound")
    axis.set_ylabel("policy lag")
    axis.set_ylim(-0.2, max_lag + 0.3)
    _legend(axis)


def _queue(axis: Any, events: Rows, steps: Rows, origin: float) -> None:
    samples = [row for row in events if row["kind"] == "queue"]
    points = [(row["time"] - origin, row.get("gauges", {})) for row in samples] or [
        (row["time"] - origin, {key.removeprefix("queue_"): value for key, value in row.items()}) for row in steps
    ]
    times = [time for time, _ in points]
    for key, label, color in (
        ("tickets_leased", "being generated", BLUE),
        ("tickets_streamed", "complete, waiting", GREEN),
        ("tickets_decided", "decided", ORANGE),
    ):
        axis.plot(times, [gauges.get(key) or 0.0 for _, gauges in points], color=color, label=label, linewidth=1.2)
    axis.set_ylabel("groups")
    axis.set_ylim(bottom=0)
    _legend(axis)


def _lanes(axis: Any, events: Rows, lanes: Sequence[str], origin: float) -> None:
    """A lane per replica (height: running samples; ticks: weight loads) and one for the trainer (boxes: steps)."""
    for position, name in enumerate(lanes):
        own = [row for row in events if row["kind"] == "sample" and row["replica"] == name]
        times, running = running_samples([(row["start"] - origin, row["end"] - origin) for row in own])
        top = max(running, default=1) or 1
        base = len(lanes) - position
        axis.fill_between(
            times, base, base + 0.8 * np.asarray(running) / top, step="post", color=BLUE, alpha=0.7, linewidth=0
        )
        loads = [row["end"] - origin for row in events if row["kind"] == "weights" and row["replica"] == name]
        axis.vlines(loads, base, base + 0.9, color=RED, linewidth=0.6)
        axis.annotate(
            f"max {top}", (1.0, base + 0.4), xycoords=("axes fraction", "data"), fontsize=7, color=INK, va="center"
        )
    spans = [(row["start"] - origin, row["end"] - row["start"]) for row in events if row["kind"] == "step"]
    axis.broken_barh(spans, (0.0, 0.8), color=ORANGE, linewidth=0)
    axis.set_yticks([i + 0.4 for i in range(len(lanes) + 1)], ["trainer", *reversed(lanes)])
    axis.set_ylim(0, len(lanes) + 1)
    axis.set_title("filled: samples running; red: weights loaded; orange: training", fontsize=8, loc="left", color=INK)


def trailing_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean of each value and the ones before it, up to `width`."""
    return [float(np.mean(values[max(0, i - width + 1) : i + 1])) for i in range(len(values))]


def running_samples(spans: Sequence[tuple[float, float]]) -> tuple[list[float], list[int]]:
    """Times at which the number of open spans changes, and the number from then on."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    times, counts, count = [], [], 0
    for time, change in changes:
        count += change
        times.append(time)
        counts.append(count)
    return times, counts
