"""The length models of one job: learned online, judged on answers they had not seen, the best of them used.

    none        one distribution for all prompts
    history     earlier answers of the same prompt, shrunk to the common mean
    features    the same, shrunk to a regression on what is known of the prompt
    ranker      the same, shrunk to a pairwise ranker on the prompt's tokens

They cost more from line to line. Prompts that were answered before and those that were not are two questions, each
with a board of its own; until prompts come again, half of a group stands for the earlier answers to the other half. A
third board says what siblings in the group add. The same answers in the same batches give the same predictions.
"""

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from drumroll_planner.lengths.answers import Groups, Prompts
from drumroll_planner.lengths.features import Features
from drumroll_planner.lengths.history import History, Running, Summary
from drumroll_planner.lengths.outlook import GRID, NORMAL_SHAPE, Outlook, Unit
from drumroll_planner.lengths.ranker import Ranker
from drumroll_planner.lengths.scoring import QUANTILES, Board, Score, pinball

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
ModelName = Literal["none", "history", "features", "ranker"]
Choice = Literal["auto", "none", "history", "features", "ranker"]

_PRIORS: tuple[ModelName, ...] = ("history", "features", "ranker")
_BETWEEN_ANSWERS = 4000.0
_RESIDUALS = 8192
_ENOUGH = 1024
"""Residuals before their shape is believed."""
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class LengthReport:
    """What people see of the models."""

    first: ModelName
    """Used for prompts that were never answered."""
    again: ModelName
    """Used for prompts that were."""
    first_scores: tuple[Score, ...]
    again_scores: tuple[Score, ...]
    sibling_scores: tuple[Score, ...]
    num_answers: int
    censored_share: float
    drift: float
    """How much longer answers are than when the last outlook was made: 0.1 is 10 %."""
    moved: float
    """Standard deviation of a prompt's own change of log length from pass to pass."""


@dataclass(frozen=True, slots=True, eq=False)
class _Guess:
    """One model's prediction of a batch: mean log lengths, variance of the mean, total deviation."""

    mean: Floats
    variance: Floats
    total: Floats


class LengthModels:
    """See the module. Holds 17 bytes a prompt, and a megabyte besides."""

    def __init__(
        self, prompts: Prompts, *, limit: int, seed: int = 0, unit: Unit = "tokens", model: Choice = "auto"
    ) -> None:
        self.limit, self.unit, self.model = limit, unit, model
        self._num_rows = len(prompts)
        self._history = History(len(prompts))
        self._features = Features(prompts)
        self._ranker = None if prompts.ids is None else Ranker(len(prompts), prompts.ids, seed=seed)
        self._priors = tuple(name for name in _PRIORS if name != "ranker" or self._ranker is not None)
        self._between = {name: Running(_BETWEEN_ANSWERS, 0.5) for name in self._priors}
        known: tuple[ModelName, ...] = ("none", *self._priors)
        self._first = Board([name for name in known if name != "history"])
        self._again = Board(known)
        self._siblings = Board(["without", "siblings"])
        self._residuals = np.zeros(0, np.float64)
        self._num_answers = 0
        self._num_censored = 0
        self._planned_level: float | None = None

    # -- learning ------------------------------------------------------------------------------------------------

    def observe(self, groups: Groups) -> None:
        """Judge every model on these answers, then learn from them. A batch is about a step's worth of groups."""
        groups = groups.select(np.asarray((~np.isnan(groups.lengths)).any(axis=1)))
        if not len(groups):
            return
        priors = {name: self._prior(name, groups.rows) for name in self._priors}
        guesses = {name: self._guess(name, groups.rows, priors) for name in ("none", *self._priors)}
        self._judge(groups, priors, guesses)
        again = self._history.seen[groups.rows]
        used = guesses[self._choice(self._again)]
        fresh = guesses[self._choice(self._first)]
        mean, variance = np.where(again, used.mean, fresh.mean), np.where(again, used.variance, fresh.variance)
        summary = self._history.complete(groups, mean, np.maximum(variance, 1e-4))
        self._note_residuals(summary, mean, np.where(again, used.total, fresh.total))
        self._learn(groups, summary, priors, mean)

    def _learn(self, groups: Groups, summary: Summary, priors: dict[ModelName, Floats], mean: Floats) -> None:
        level = self._history.level.value
        for name, prior in priors.items():
            wrong = (summary.mean - level - prior) ** 2 - self._history.noise / np.maximum(summary.count, 1.0)
            self._between[name].add(float(wrong.sum()), float(len(groups)))
            self._between[name].value = max(self._between[name].value, 1e-4)
        self._history.observe(summary, mean)
        effects = summary.mean - self._history.level.value
        self._features.observe(groups.rows, effects, summary.count, groups.rewards)
        if self._ranker is not None:
            self._ranker.observe(groups.rows, effects)
        there = ~np.isnan(groups.lengths)
        self._num_answers += int(there.sum())
        self._num_censored += int((there & groups.censored).sum())

    def _note_residuals(self, summary: Summary, mean: Floats, total: Floats) -> None:
        residuals = (summary.values - mean[:, None]) / np.maximum(total, 1e-3)[:, None]
        found = residuals[~np.isnan(residuals)]
        self._residuals = np.concatenate([self._residuals, found])[-_RESIDUALS:]

    # -- predicting ----------------------------------------------------------------------------------------------

    def outlook(self, rows: Rows | None = None) -> Outlook:
        """What is expected of rows (default: all of them)."""
        rows = np.arange(self._num_rows, dtype=np.int64) if rows is None else rows
        self._planned_level = self._history.level.value
        columns = np.empty((3, len(rows)), np.float32)
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            columns[:, part] = self._columns(rows[part])
        return Outlook(columns[0], columns[1], columns[2], self.limit, self.shape(), self.unit)

    def _columns(self, rows: Rows) -> npt.NDArray[np.float32]:
        names = {self._choice(self._again), self._choice(self._first)}
        needed = [name for name in self._priors if name in names]
        priors = {name: self._prior(name, rows) for name in needed}
        again, first = (self._guess(self._choice(board), rows, priors) for board in (self._again, self._first))
        seen = self._history.seen[rows]
        mean = np.where(seen, again.mean, first.mean)
        doubt = np.sqrt(np.where(seen, again.variance, first.variance))
        total = np.where(seen, again.total, first.total)
        return np.stack([mean, doubt, np.sqrt(np.maximum(total**2 - doubt**2, 1e-6))]).astype(np.float32)

    def shape(self) -> npt.NDArray[np.float32]:
        """Quantiles of the standardised residuals; the normal's until there are enough."""
        if len(self._residuals) < _ENOUGH:
            return NORMAL_SHAPE
        found = np.quantile(self._residuals, GRID)
        # Medians and spread are the models' business, only the tails' form is learned here.
        middle, scale = float(np.median(found)), float(found.std())
        return ((found - middle) / max(scale, 1e-3)).astype(np.float32)

    def report(self) -> LengthReport:
        """Choice, scores and drift, as they stand."""
        planned = self._history.level.value if self._planned_level is None else self._planned_level
        return LengthReport(
            first=self._choice(self._first),
            again=self._choice(self._again),
            first_scores=self._first.scores(),
            again_scores=self._again.scores(),
            sibling_scores=self._siblings.scores(),
            num_answers=self._num_answers,
            censored_share=self._num_censored / max(1, self._num_answers),
            drift=float(np.expm1(self._history.level.value - planned)),
            moved=float(np.sqrt(self._history.drift.value)),
        )

    @property
    def num_bytes(self) -> int:
        """Of what grows with the number of prompts."""
        return self._history.num_bytes + self._features.num_bytes

    @property
    def has_history(self) -> bool:
        """Whether any answer was ever seen."""
        return self._num_answers > 0

    def _choice(self, board: Board) -> ModelName:
        if self.model == "auto":
            # Before it can be told, history is believed: between prompts lies most of the variance.
            name = board.best(default="history" if board is self._again else "none")
        else:
            name = self.model if self.model in board.models else board.models[0]
        return cast(ModelName, name)

    def _prior(self, name: ModelName, rows: Rows) -> Floats:
        if name == "features":
            return self._features.predict(rows)
        if name == "ranker" and self._ranker is not None:
            return self._ranker.predict(rows)
        return np.zeros(len(rows))

    def _guess(self, name: ModelName, rows: Rows, priors: dict[ModelName, Floats]) -> _Guess:
        level = self._history.level.value
        if name == "none":
            between = self._between["history"].value
            variance = np.full(len(rows), between)
            mean, spread = np.full(len(rows), level), np.full(len(rows), np.sqrt(self._history.noise))
        else:
            effect, variance = self._history.effect(rows, priors[name], self._between[name].value)
            mean, spread = level + effect, self._history.spread(rows)
        return _Guess(mean, variance, np.sqrt(variance + spread**2))

    # -- judging -------------------------------------------------------------------------------------------------

    def _judge(self, groups: Groups, priors: dict[ModelName, Floats], guesses: dict[ModelName, _Guess]) -> None:
        again = self._history.seen[groups.rows]
        width = groups.lengths.shape[1]
        if again.any():
            self._score(self._again, groups.select(again), {name: _of(guess, again) for name, guess in guesses.items()})
        if not again.all():
            fresh = {name: _of(guess, ~again) for name, guess in guesses.items()}
            self._score(self._first, groups.select(~again), fresh)
        if width < 2:
            return
        shown, hidden = groups.columns(slice(0, width // 2)), groups.columns(slice(width // 2, None))
        updated = {name: self._with_siblings(guess, shown) for name, guess in guesses.items()}
        updated["none"] = guesses["none"]
        if not again.all():
            halves = {name: _of(guess, ~again) for name, guess in updated.items()}
            self._score(self._again, hidden.select(~again), halves)
        chosen = self._choice(self._again)
        told = self._with_siblings(guesses[chosen], shown)
        self._score(self._siblings, hidden, {"without": guesses[chosen], "siblings": told})

    def _with_siblings(self, guess: _Guess, shown: Groups) -> _Guess:
        spread = np.sqrt(np.maximum(guess.total**2 - guess.variance, 1e-6))
        summary = self._history.complete(shown, guess.mean, np.maximum(guess.variance, 1e-4))
        mean, variance = with_siblings(guess.mean, guess.variance, spread, summary.mean, summary.count)
        return _Guess(mean, variance, np.sqrt(variance + spread**2))

    def _score(self, board: Board, groups: Groups, guesses: dict[ModelName, _Guess] | dict[str, _Guess]) -> None:
        keep = (~np.isnan(groups.lengths)).any(axis=1)
        actual = np.log(groups.lengths[keep].astype(np.float64))
        z = np.interp(QUANTILES, GRID, self.shape())
        means, losses = {}, {}
        for name, guess in guesses.items():
            points = guess.mean[keep, None] + guess.total[keep, None] * z[None, :]
            means[name] = guess.mean[keep]
            losses[name] = pinball(np.minimum(points, np.log(self.limit)), actual)
        if keep.any():
            board.add(means, losses, np.nanmean(actual, axis=1))


def _of(guess: _Guess, keep: npt.NDArray[np.bool_]) -> _Guess:
    return _Guess(guess.mean[keep], guess.variance[keep], guess.total[keep])


def with_siblings(
    mean: Floats, variance: Floats, spread: Floats, seen_mean: Floats, seen_count: Floats
) -> tuple[Floats, Floats]:
    """A prediction after `seen_count` answers of the same group with mean log length `seen_mean`: (mean, variance)."""
    precision = seen_count / spread**2
    total = 1.0 / np.maximum(variance, 1e-6) + precision
    return (mean / np.maximum(variance, 1e-6) + precision * seen_mean) / total, 1.0 / total
