"""A pairwise ranker on hashed n-grams of the prompt's token ids, learned online.

The idea is PARS' (arXiv 2510.03243): learn which of two prompts gets the longer answer by a margin ranking loss, from
pairs whose lengths differ by at least a fifth; the encoder here is a bag of hashed single tokens and pairs, so that
nothing is downloaded. A score becomes a log length by a regression that forgets. 4 bytes a prompt for cached scores.
"""

import numpy as np
import numpy.typing as npt

from drumroll_planner.lengths.answers import TokenIds

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_BUCKETS = 1 << 15
_MOST_TOKENS = 512
"""Of a prompt, the last ones: templates stand in front."""
_MARGIN = 1.0
_LEAST_DIFFERENCE = 0.2
_RATE = 0.15
_MEMORY = 1024
"""Groups that are kept to be compared with."""
_ROUNDS = 4
_SAMPLE = 128
_KEEP = 0.995
_CHUNK = 4096

Bag = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Hashed n-grams of some prompts, one after the other, and where each prompt's begin."""


def bag_of(ids: list[npt.NDArray[np.int32]]) -> Bag:
    """Hashed tokens and pairs of neighbours of each prompt; at least one entry a prompt."""
    cut = [np.asarray(one[-_MOST_TOKENS:], np.uint32) if len(one) else np.zeros(1, np.uint32) for one in ids]
    lengths = np.array([len(one) for one in cut])
    flat = np.concatenate(cut)
    ends = np.cumsum(lengths)
    single = flat * np.uint32(2654435761)
    pairs = single.copy()
    pairs[1:] = single[1:] ^ (flat[:-1] * np.uint32(2246822519) + np.uint32(374761393))
    # A prompt's first token has no neighbour before it: its pair stands for the token again.
    pairs[ends[:-1]] = single[ends[:-1]]
    both = np.stack([single, pairs], axis=1).reshape(-1)
    hashed = ((both * np.uint32(2654435769)) >> np.uint32(17)).astype(np.int64)
    return hashed, 2 * (ends - lengths)


class Ranker:
    """See the module. Predicts effects: log length relative to the level."""

    def __init__(self, num_rows: int, ids: TokenIds, *, seed: int) -> None:
        self._ids = ids
        self._num_rows = num_rows
        self._generator = np.random.Generator(np.random.PCG64([seed, 0x72616E6B]))
        self._weights = np.zeros(_BUCKETS)
        self._squares = np.full(_BUCKETS, 1e-6)
        self._rows = np.zeros(0, np.int64)
        self._lengths = np.zeros(0)
        self._line = np.zeros(5)
        """Sums of weight, score, score squared, effect, score times effect."""

    @property
    def num_bytes(self) -> int:
        """Of what grows with the rows: nothing. Weights take half a megabyte whatever the data set."""
        return 0

    def predict(self, rows: Rows) -> Floats:
        """Effects of rows."""
        slope, offset = self._slope()
        return offset + slope * self.scores(rows)

    def scores(self, rows: Rows) -> Floats:
        """Scores of rows: the higher, the longer."""
        found = np.zeros(len(rows))
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            found[start : start + _CHUNK] = self._score(bag_of(list(self._ids(part))))
        return found

    def observe(self, rows: Rows, effects: Floats) -> None:
        """Learn from effects of rows: first how scores became lengths, then the order."""
        scores = self.scores(rows)
        sums = [np.ones_like(scores), scores, scores**2, effects, scores * effects]
        self._line = _KEEP * self._line + np.array([float(values.sum()) for values in sums])
        self._rows = np.concatenate([self._rows, rows])[-_MEMORY:]
        self._lengths = np.concatenate([self._lengths, effects])[-_MEMORY:]
        bags = None if len(self._rows) > _SAMPLE else bag_of(list(self._ids(self._rows)))
        for _ in range(_ROUNDS):
            if bags is not None:
                self._learn(bags, self._lengths)
                continue
            chosen = np.sort(self._generator.choice(len(self._rows), _SAMPLE, replace=False))
            self._learn(bag_of(list(self._ids(self._rows[chosen]))), self._lengths[chosen])

    def _slope(self) -> tuple[float, float]:
        weight, score, squares, effect, product = self._line
        if weight < 2:
            return 0.0, 0.0
        variance = squares / weight - (score / weight) ** 2
        slope = max(0.0, (product / weight - score * effect / weight**2) / (variance + 1e-6))
        return float(slope), float(effect / weight - slope * score / weight)

    def _score(self, bag: Bag) -> Floats:
        hashed, begins = bag
        counts = np.diff(np.append(begins, len(hashed)))
        return np.asarray(np.add.reduceat(self._weights[hashed], begins) / np.sqrt(counts))

    def _learn(self, bag: Bag, effects: Floats) -> None:
        """One step on the margin ranking loss over all pairs that differ enough (AdaGrad)."""
        if len(effects) < 2:
            return
        scores = self._score(bag)
        gap = effects[:, None] - effects[None, :]
        # exp(-gap) is the shorter answer's share of the longer: the difference is relative to the longer one.
        wanted = (gap > 0) & (1.0 - np.exp(-gap) >= _LEAST_DIFFERENCE)
        violated = wanted & (scores[:, None] - scores[None, :] < _MARGIN)
        pull = (violated.sum(axis=1) - violated.sum(axis=0)) / max(1, int(wanted.sum())) * len(effects)
        hashed, begins = bag
        counts = np.diff(np.append(begins, len(hashed)))
        gradient = np.bincount(hashed, np.repeat(pull / np.sqrt(counts), counts), minlength=_BUCKETS)
        self._squares += gradient**2
        self._weights += _RATE * gradient / np.sqrt(self._squares)
