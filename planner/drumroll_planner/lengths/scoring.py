"""How good predictions were on answers that had not been seen: rank correlation and quantile loss, side by side.

A board holds the newest groups; every model of it predicted each of them before it was learned from. A model beats a
cheaper one where its loss is lower by more than chance, or its rank correlation is, and the other figure is no worse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

QUANTILES = (0.1, 0.5, 0.9, 0.98)
_KEEP = 1024
_LEAST_GROUPS = 48
"""Fewer say nothing."""
_LOSS_GAIN = 0.01
_RANK_GAIN = 0.02
_SIGMAS = 2.0


@dataclass(frozen=True, slots=True)
class Score:
    """One model on one board."""

    model: str
    num_groups: int
    rank_correlation: float
    """Spearman's, of predicted and actual mean log lengths of groups."""
    quantile_loss: float
    """Mean pinball loss of log length over four quantiles."""


def pinball(quantiles: Floats, actual: Floats) -> Floats:
    """Loss of predicted quantiles [groups, quantiles] at answers [groups, width] (NaN: none), mean by group."""
    probabilities = np.array(QUANTILES)[None, None, :]
    gap = actual[:, :, None] - quantiles[:, None, :]
    loss = np.where(gap >= 0, probabilities * gap, (probabilities - 1.0) * gap).mean(axis=2)
    there = ~np.isnan(actual)
    return np.asarray(np.where(there, loss, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1))


def spearman(first: Floats, second: Floats) -> float:
    """Rank correlation, ties sharing their mean rank; 0 where one of them is constant."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / norm if norm > 0 else 0.0


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2.0)[inverse])


class Board:
    """See the module. `models` are named cheapest first."""

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        self._predicted = np.zeros((0, len(models)))
        self._losses = np.zeros((0, len(models)))
        self._actual = np.zeros(0)

    def add(self, predicted: Mapping[str, Floats], losses: Mapping[str, Floats], actual: Floats) -> None:
        """One batch: predicted mean log lengths and losses by model, and actual mean log lengths [groups]."""
        columns = np.stack([predicted[name] for name in self.models], axis=1)
        rows = np.stack([losses[name] for name in self.models], axis=1)
        self._predicted = np.concatenate([self._predicted, columns])[-_KEEP:]
        self._losses = np.concatenate([self._losses, rows])[-_KEEP:]
        self._actual = np.concatenate([self._actual, actual])[-_KEEP:]

    def scores(self) -> tuple[Score, ...]:
        """All models, cheapest first."""
        return tuple(
            Score(name, len(self._actual), self._rank(place), float(self._losses[:, place].mean()))
            for place, name in enumerate(self.models)
            if len(self._actual)
        )

    def best(self, *, default: str) -> str:
        """The cheapest model that is not beaten; `default` while there is too little to tell."""
        if len(self._actual) < _LEAST_GROUPS:
            return default
        best = 0
        for place in range(1, len(self.models)):
            if self._beats(place, best):
                best = place
        return self.models[best]

    def _rank(self, place: int) -> float:
        return spearman(self._predicted[:, place], self._actual)

    def _beats(self, costly: int, cheap: int) -> bool:
        gain = self._losses[:, cheap] - self._losses[:, costly]
        error = float(gain.std() / np.sqrt(len(gain)))
        mean, scale = float(gain.mean()), float(self._losses[:, cheap].mean())
        ranks = self._rank(costly) - self._rank(cheap)
        rank_error = _SIGMAS / np.sqrt(len(gain))
        loss_better = mean > max(_SIGMAS * error, _LOSS_GAIN * scale)
        rank_better = ranks > max(_RANK_GAIN, rank_error)
        return (loss_better and ranks > -_RANK_GAIN) or (rank_better and mean > -_LOSS_GAIN * scale)
