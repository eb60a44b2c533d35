"""How representative the trained prompts are, step by step and over a cycle, and what micro-batches waste."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Representativeness:
    """Relative spread (standard deviation over mean) of the mean predicted length."""

    between_steps: float
    """From minibatch to minibatch."""
    over_cycle: float
    """Between runs of `cycle` minibatches."""
    cycle: int
    shuffled_steps: float
    """What a shuffle would have from minibatch to minibatch."""


def representativeness(tokens: npt.NDArray[np.int32], *, per_step: int, cycle: int) -> Representativeness:
    """Of predicted lengths in plan order [tickets]."""
    num_steps = len(tokens) // per_step
    if num_steps < 2 or not tokens.any():
        return Representativeness(0.0, 0.0, cycle, 0.0)
    means = tokens[: num_steps * per_step].reshape(num_steps, per_step).mean(axis=1, dtype=np.float64)
    runs = num_steps // cycle
    over = means[: runs * cycle].reshape(runs, cycle).mean(axis=1) if runs >= 2 else np.ones(1)
    own = float(tokens.std(dtype=np.float64) / tokens.mean(dtype=np.float64))
    return Representativeness(_relative(means), _relative(over), cycle, own / float(np.sqrt(per_step)))


def _relative(values: Floats) -> float:
    return float(values.std() / values.mean()) if values.mean() else 0.0


def micro_batches(lengths: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int64]:
    """Cut a minibatch's samples into micro-batches of neighbours in length: places, shortest first [samples].

    Micro-batch i is places[i * size : (i + 1) * size]; one that is not full holds the longest. Where all are full, no
    other cut leaves less padding: exchanging two samples of different micro-batches can only raise one's maximum.
    """
    if size < 1:
        raise ValueError(f"a micro-batch of {size} samples; write 1 or more")
    return np.asarray(np.argsort(lengths, kind="stable"), dtype=np.int64)


def padding(lengths: npt.NDArray[np.int32], places: npt.NDArray[np.int64], size: int) -> float:
    """Share of a minibatch's padded tokens that is padding, cut at every `size` samples in the order of `places`."""
    ordered = lengths[places].astype(np.int64)
    starts = np.arange(0, len(ordered), size)
    if not len(starts):
        return 0.0
    counts = np.diff(np.append(starts, len(ordered)))
    padded = int((np.maximum.reduceat(ordered, starts) * counts).sum())
    return 1.0 - int(ordered.sum()) / max(1, padded)
