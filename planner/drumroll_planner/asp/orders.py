"""Orders of a pass: the seeded shuffle, and cyclic tail batching. Pure, and the same to the last byte for a seed.

Under the lag bound a long answer holds up the bound + 1 steps that may pass while it runs, whatever else is in them.
Spread evenly, long answers each hold up a window of their own; side by side they wait in the same one:

    pass = cycles of M minibatches, each with the same distribution of risk
    cycle = half of the rest | the K * B riskiest, sorted, in K neighbouring minibatches | the other half of the rest

The longest stand in the middle of the K, so that what is just below them starts before and ends behind them in the
same window. Inside a minibatch the riskiest come first, since they are to start first.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_TAIL_STREAM = 0x7461696C


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A kind of tail batching."""

    cycle: int
    """M: minibatches of a cycle."""
    tail: int
    """K: of these, how many hold its riskiest prompts."""

    def __str__(self) -> str:
        return f"cycles of {self.cycle} steps, their longest in {self.tail}"


def shuffled(num_prompts: int, *, seed: int, epoch: int) -> Rows:
    """First come, first served: a shuffle seeded by (seed, epoch)."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(num_prompts).astype(np.int64)


def tail_batched(risk: Floats, *, per_step: int, shape: Shape, seed: int, epoch: int) -> Rows:
    """Rows in the order of tail batching by `risk` (the higher, the longer). What does not fill a step comes last.

    Where nothing is riskier than anything else, this is the seeded shuffle.
    """
    base = shuffled(len(risk), seed=seed, epoch=epoch)
    num_steps = len(risk) // per_step
    if num_steps < 2 or shape.tail < 1 or not len(risk) or bool(np.all(risk == risk[0])):
        return base
    generator = np.random.Generator(np.random.PCG64([seed, epoch, _TAIL_STREAM]))
    whole, rest = base[: num_steps * per_step], base[num_steps * per_step :]
    # Among equals the shuffle decides, since the sort is stable.
    ranked = whole[np.argsort(-risk[whole], kind="stable")]
    sizes = cycle_sizes(num_steps, shape.cycle)
    of_rank = _deal(sizes * per_step, generator)
    by_cycle = ranked[np.argsort(of_rank, kind="stable")]
    parts = []
    start = 0
    for size in sizes:
        members = by_cycle[start : start + size * per_step]
        parts.append(_cycle(members, risk, per_step=per_step, tail=min(shape.tail, size), generator=generator))
        start += size * per_step
    return np.concatenate([*parts, rest])


def cycle_sizes(num_steps: int, cycle: int) -> npt.NDArray[np.int64]:
    """Steps of each cycle: as equal as can be, about `cycle` each."""
    count = max(1, round(num_steps / cycle))
    return np.diff(np.linspace(0, num_steps, count + 1).round().astype(np.int64))


def _deal(sizes: npt.NDArray[np.int64], generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Which cycle each rank goes to: cycle c takes one of every so many ranks, at a random place among them."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = (np.arange(len(owners)) - starts + generator.random(len(owners))) / np.repeat(sizes, sizes)
    return np.asarray(owners[np.argsort(places, kind="stable")], dtype=np.int64)


def _cycle(members: Rows, risk: Floats, *, per_step: int, tail: int, generator: np.random.Generator) -> Rows:
    """One cycle's rows, which come riskiest first."""
    risky, rest = members[: tail * per_step], members[tail * per_step :]
    rest = rest[generator.permutation(len(rest))]
    before = len(rest) // per_step // 2 * per_step
    blocks = risky.reshape(tail, per_step)
    middle = blocks[pyramid(tail)].reshape(-1)
    order = np.concatenate([rest[:before], middle, rest[before:]])
    return longest_first(order, risk, per_step=per_step)


def pyramid(count: int) -> npt.NDArray[np.int64]:
    """0 .. count - 1 with the smallest in the middle: 4 2 0 1 3."""
    odd, even = np.arange(1, count, 2), np.arange(0, count, 2)
    return np.asarray(np.concatenate([even[::-1], odd]), dtype=np.int64)


def longest_first(order: Rows, risk: Floats, *, per_step: int) -> Rows:
    """The same minibatches with the riskiest first in each."""
    steps = np.arange(len(order)) // per_step
    return np.asarray(order[np.lexsort((-risk[order], steps))], dtype=np.int64)
