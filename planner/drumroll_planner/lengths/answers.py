"""Answers as the length models see them, and the prompts that they answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenIds = Callable[[npt.NDArray[np.int64]], Sequence[npt.NDArray[np.int32]]]
"""Rows to the token ids of each."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Answers of a few prompts, at most `width` each; what is missing is NaN."""

    rows: npt.NDArray[np.int64]
    """[groups]"""
    lengths: npt.NDArray[np.float32]
    """[groups, width], at least 1; NaN where there is no answer."""
    censored: npt.NDArray[np.bool_]
    """[groups, width]: the answer would have gone on (cut at the limit, or given up)."""
    rewards: npt.NDArray[np.float32]
    """[groups]: the mean reward; NaN where unknown."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        lengths: Sequence[Sequence[float]],
        censored: Sequence[Sequence[bool]] | None = None,
        rewards: Sequence[float] | None = None,
    ) -> "Groups":
        """From lists, one entry a prompt; groups are put in row order whatever order they come in."""
        order = sorted(range(len(rows)), key=lambda place: (rows[place], tuple(lengths[place])))
        width = max((len(group) for group in lengths), default=0)
        table = np.full((len(rows), width), np.nan, np.float32)
        cut = np.zeros((len(rows), width), np.bool_)
        for place, source in enumerate(order):
            group = lengths[source]
            table[place, : len(group)] = np.maximum(group, 1.0)
            if censored is not None:
                cut[place, : len(group)] = censored[source]
        found = [np.nan] * len(rows) if rewards is None else [rewards[source] for source in order]
        return cls(np.array([rows[source] for source in order], np.int64), table, cut, np.array(found, np.float32))

    def columns(self, part: slice) -> "Groups":
        """Only some answers of each group."""
        return Groups(self.rows, self.lengths[:, part], self.censored[:, part], self.rewards)

    def select(self, keep: npt.NDArray[np.bool_]) -> "Groups":
        """Only some groups."""
        return Groups(self.rows[keep], self.lengths[keep], self.censored[keep], self.rewards[keep])


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """What is known of the prompts of a data set before anything is generated."""

    tokens: npt.NDArray[np.int32]
    """Length of each prompt, in tokens [rows]."""
    source: npt.NDArray[np.int16]
    """Its data source, as a small number [rows]; 0 where there is one or none."""
    level: npt.NDArray[np.float32]
    """How hard its data set says it is [rows]; NaN where it does not say."""
    ids: TokenIds | None = None
    """Token ids of some rows, where the ranker may read them."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, tokens: npt.NDArray[np.int32], ids: TokenIds | None = None) -> "Prompts":
        """Prompts of which only the length, and perhaps the ids, are known."""
        return cls(tokens, np.zeros(len(tokens), np.int16), np.full(len(tokens), np.nan, np.float32), ids)
