"""A picture of a plan: its minibatches' longest answers, and the candidates that were simulated."""

from pathlib import Path

import numpy as np
from drumroll_planner.asp.explanation import Explanation

_BLUE, _ORANGE, _GREY = "#2563eb", "#ea580c", "#94a3b8"


def draw(told: Explanation, path: Path) -> None:
    """Write the picture; its kind is that of the suffix.

    Raises:
        OSError: it cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "drumroll"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 5.2), height_ratios=(3, 2), layout="constrained")
    steps = told.setting.num_prompts // max(1, told.setting.prompts_per_step)
    places = np.linspace(0, max(steps - 1, 0), len(told.profile))
    above.fill_between(places, told.profile, step="mid", color=_BLUE, alpha=0.35, linewidth=0)
    above.step(places, told.profile, where="mid", color=_BLUE, linewidth=1.0)
    order = "first come" if told.choice.shape is None else str(told.choice.shape)
    above.set_title(f"pass {told.setting.epoch}: {order}", loc="left", fontsize=11)
    above.set_xlabel("step of the pass")
    above.set_ylabel(f"expected longest answer [{told.unit}]")
    above.set_ylim(bottom=0)
    above.margins(x=0.01)
    trials = sorted(told.choice.trials, key=lambda trial: -trial.iteration_s)
    names = [f"{trial.name}, target {trial.target}" for trial in trials]
    chosen = [(trial.shape, trial.target) == (told.choice.shape, told.choice.target) for trial in trials]
    colours = [_ORANGE if mine else _GREY for mine in chosen]
    bars = below.barh(names, [trial.iteration_s for trial in trials], color=colours)
    below.bar_label(bars, fmt="%.3g s", padding=3, fontsize=8)
    below.set_xlabel("simulated time of a step; the chosen order in orange")
    below.tick_params(axis="y", labelsize=8)
    below.margins(x=0.12)
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
