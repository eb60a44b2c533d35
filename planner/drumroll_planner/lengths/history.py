"""What earlier answers of a prompt say of its next ones, in log space: a random-effects model with drift.

    y[prompt, answer] = level(t) + effect[prompt] + noise      effect ~ N(prior, between),  noise ~ N(0, within)

`level` follows the policy; effects are kept relative to it, so that they stay good while all answers grow longer.
The effect is shrunk to its prior by what is known of it; an older pass counts half as much as the one after it. Three
variances are estimated on the way: within a group, between prompts, and `drift`, by how much a prompt's effect moves
from one pass to the next. 14 bytes a prompt.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drumroll_planner.lengths.answers import Groups
from drumroll_planner.lengths.normal import beyond

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

FORGET = 0.5
"""Weight of a pass against the next one."""
_OWN_SPREAD = 6.0
"""So many answers' worth of the common spread are mixed into a prompt's own."""
_LEVEL_ANSWERS = 1000.0
"""The level follows the newest answers, about so many."""
_VARIANCE_ANSWERS = 20_000.0
_LEAST = 1e-4
_WITHIN_SHARE = 0.2
"""Of the variance of log length, as measured in sampled maths answers (0.14 to 0.21)."""
_ASSUMED_ANSWERS = 100.0
"""So many answers' worth is the assumption."""


@dataclass(slots=True)
class Running:
    """A mean that forgets: the newest `horizon` of weight counts."""

    horizon: float
    value: float
    weight: float = 0.0

    def add(self, total: float, weight: float) -> None:
        """Take in values that sum up to `total`."""
        if weight <= 0:
            return
        self.weight = min(self.weight, self.horizon) + weight
        self.value += (total / weight - self.value) * weight / self.weight


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """A batch of groups, with censored answers replaced by what is expected of them."""

    rows: Rows
    count: Floats
    mean: Floats
    """Mean log length of each group."""
    squares: Floats
    """Sum of squared differences from it."""
    values: Floats
    """Log lengths [groups, width]; NaN where there is no answer."""


class History:
    """See the module."""

    def __init__(self, num_rows: int) -> None:
        self.level = Running(_LEVEL_ANSWERS, float(np.log(512.0)))
        self.within = Running(_VARIANCE_ANSWERS, 0.25)
        self.total = Running(_VARIANCE_ANSWERS, 1.0)
        """Variance of group means around the level."""
        self.drift = Running(_VARIANCE_ANSWERS, 0.1)
        self.seen = np.zeros(num_rows, np.bool_)
        self._weight = np.zeros(num_rows, np.float32)
        self._mean = np.zeros(num_rows, np.float32)
        self._squares = np.zeros(num_rows, np.float32)

    @property
    def num_bytes(self) -> int:
        """Of the columns."""
        return sum(column.nbytes for column in (self.seen, self._weight, self._mean, self._squares))

    @property
    def noise(self) -> float:
        """Variance of log length within a prompt. Single answers do not show it: a share of the whole is assumed."""
        assumed = _WITHIN_SHARE * max(self.total.value, _LEAST)
        return (_ASSUMED_ANSWERS * assumed + self.within.weight * self.within.value) / (
            _ASSUMED_ANSWERS + self.within.weight
        )

    def effect(self, rows: Rows, prior: Floats, between: float) -> tuple[Floats, Floats]:
        """(mean, variance) of the effects of rows: history shrunk to `prior`, whose error has variance `between`."""
        weight = self._weight[rows].astype(np.float64)
        precision = weight / max(self.noise, _LEAST)
        total = precision + 1.0 / max(between, _LEAST)
        mean = (precision * self._mean[rows] + prior / max(between, _LEAST)) / total
        return mean, 1.0 / total + np.where(weight > 0, self.drift.value, 0.0)

    def spread(self, rows: Rows) -> Floats:
        """Standard deviation among the answers of each row: its own, shrunk to the common one."""
        weight = self._weight[rows].astype(np.float64)
        own = self._squares[rows] + _OWN_SPREAD * self.noise
        return np.sqrt(own / (_OWN_SPREAD + np.maximum(weight - 1.0, 0.0)))

    def complete(self, groups: Groups, mean: Floats, variance: Floats) -> Summary:
        """Replace censored answers by their expectation under a prediction; two rounds of EM, each group by itself."""
        there = ~np.isnan(groups.lengths)
        log = np.where(there, np.log(np.where(there, groups.lengths, 1.0)), 0.0).astype(np.float64)
        cut = there & groups.censored
        count = there.sum(axis=1).astype(np.float64)
        safe = np.maximum(count, 1.0)
        own, known, extra = log, log.sum(axis=1) / safe, np.zeros_like(log)
        if cut.any():
            within = np.maximum(self.spread(groups.rows) ** 2, _LEAST)
            for _ in range(2):
                shrunk = (mean / variance + known * count / within) / (1.0 / variance + count / within)
                expected, rest = beyond(log, shrunk[:, None], np.sqrt(within)[:, None])
                own, extra = np.where(cut, expected, log), np.where(cut, rest, 0.0)
                known = own.sum(axis=1) / safe
        differences = np.where(there, own - known[:, None], 0.0) ** 2 + extra
        return Summary(groups.rows, count, known, differences.sum(axis=1), np.where(there, own, np.nan))

    def observe(self, summary: Summary, predicted: Floats) -> None:
        """Take a batch in; `predicted` is the log length that was expected of each group."""
        weight, rows = summary.count, summary.rows
        self.within.add(float(summary.squares.sum()), float(np.maximum(weight - 1.0, 0.0).sum()))
        self.level.add(float(((summary.mean - predicted + self.level.value) * weight).sum()), float(weight.sum()))
        effect = summary.mean - self.level.value
        self.total.add(float((effect**2).sum()), float(len(rows)))
        again = self.seen[rows]
        if again.any():
            moved = (effect[again] - self._mean[rows[again]]) ** 2
            noise = self.noise * (
                1.0 / np.maximum(weight[again], 1.0) + 1.0 / np.maximum(self._weight[rows[again]], 1.0)
            )
            self.drift.add(float((moved - noise).sum()), float(again.sum()))
            self.drift.value = max(self.drift.value, 0.0)
        self._remember(rows, weight, effect, summary.squares)

    def _remember(self, rows: Rows, weight: Floats, effect: Floats, squares: Floats) -> None:
        before = self._weight[rows] * FORGET
        total = np.maximum(before + weight, _LEAST)
        self._mean[rows] = (before * self._mean[rows] + weight * effect) / total
        self._squares[rows] = FORGET * self._squares[rows] + squares
        self._weight[rows] = before + weight
        self.seen[rows] |= weight > 0
