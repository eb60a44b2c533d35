"""What is expected of the answers of some prompts: a distribution per prompt, not only a mean.

    log length  =  mean  +  doubt * (one draw a prompt)  +  spread * (one draw an answer)

`doubt` is what is not known of the prompt, `spread` how much its answers differ among themselves. Draws of answers
have the shape of the residuals seen so far. Lengths end at `limit`. The unit is tokens, or seconds for episodes of
many turns, which wait for tools as well.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from drumroll_planner.lengths.normal import inverse

Unit = Literal["tokens", "seconds"]
Rows = npt.NDArray[np.int64]
Floats32 = npt.NDArray[np.float32]

NUM_SHAPE = 512
"""Minibatches of hundreds of answers are as long as their longest: the tail needs this many parts."""
GRID = (np.arange(NUM_SHAPE) + 0.5) / NUM_SHAPE
NORMAL_SHAPE: Floats32 = inverse(GRID).astype(np.float32)
"""Quantiles of the standard normal at the middle of each of 512 equal parts."""
_CHUNK = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """See the module. Arrays are of one shape, [rows]."""

    mean: Floats32
    doubt: Floats32
    spread: Floats32
    limit: int
    shape: Floats32
    """Quantiles of the standardised residuals, rising, at the middle of equal parts [NUM_SHAPE]."""
    unit: Unit = "tokens"

    def __len__(self) -> int:
        return len(self.mean)

    @classmethod
    def constant(cls, num_rows: int, *, limit: int, tokens: float = 512.0, spread: float = 0.7) -> Self:
        """Nothing is known that would tell one prompt from another."""
        mean = np.full(num_rows, np.log(min(tokens, limit)), np.float32)
        return cls(mean, np.zeros(num_rows, np.float32), np.full(num_rows, spread, np.float32), limit, NORMAL_SHAPE)

    def take(self, rows: Rows) -> Self:
        """The same, for some of the rows."""
        return replace(self, mean=self.mean[rows], doubt=self.doubt[rows], spread=self.spread[rows])

    @property
    def is_constant(self) -> bool:
        """Whether it says the same of every prompt, so that no order can be better than another."""
        columns = (self.mean, self.doubt, self.spread)
        return not len(self) or all(bool(np.all(column == column[0])) for column in columns)

    def quantile(self, probability: float) -> Floats32:
        """Of one answer's length, by row."""
        z = float(np.interp(probability, GRID, self.shape))
        total = np.hypot(self.doubt, self.spread)
        return np.asarray(np.minimum(np.exp(self.mean + z * total), self.limit), dtype=np.float32)

    def expected(self) -> Floats32:
        """Mean length of an answer, by row: the mean over the shape's parts, each cut at the limit."""
        found = np.empty(len(self), np.float32)
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            total = np.hypot(self.doubt[part], self.spread[part])
            points = self.mean[part, None] + total[:, None] * self.shape[None, 8::16]
            found[part] = np.minimum(np.exp(points), self.limit).mean(axis=1)
        return found

    def longest(self, group_size: int) -> Floats32:
        """A high guess of the longest answer of a group: its quantile at G / (G + 1). What order goes by."""
        return self.quantile(group_size / (group_size + 1.0))

    def draw(self, generator: np.random.Generator, group_size: int) -> npt.NDArray[np.int32]:
        """One future: lengths [rows, group_size], at least 1."""
        prompts = generator.standard_normal((len(self), 1), dtype=np.float32)
        places = generator.integers(0, NUM_SHAPE, (len(self), group_size))
        log = self.mean[:, None] + self.doubt[:, None] * prompts + self.spread[:, None] * self.shape[places]
        return np.asarray(np.clip(np.exp(log), 1, self.limit), dtype=np.int32)
