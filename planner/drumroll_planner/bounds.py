"""Lower bounds: times below which no schedule can get, whatever it knows.

- generation: all work of the trained answers, spread over all replicas without a gap, each step as full as is best.
- trainer: its steps, publishing and checkpoints, one after the other, behind the fastest first answer.
- longest: no token of step s is older than version s - bound, so all its answers begin after step s - bound - 1 is
  trained and end before step s begins. With d(s) the time of the longest answer of step s running alone and t(s) the
  trainer's time for it, E(s) = max(E(s - 1), E(s - bound - 1) + d(s)) + t(s). Not under `mask`, which does not wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drumroll_planner.costs import CostModel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Each in seconds for the whole job; every simulated makespan is at least `best_s`."""

    generation_s: float
    trainer_s: float
    longest_s: float

    @property
    def best_s(self) -> float:
        """The largest of them."""
        return max(self.generation_s, self.trainer_s, self.longest_s)

    @property
    def binding(self) -> str:
        """Name of the largest."""
        named = {"generation": self.generation_s, "trainer": self.trainer_s, "longest answer": self.longest_s}
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True, slots=True)
class Work:
    """Trained answers, summed up: what any schedule must do."""

    tokens: float
    """Decode steps of single sequences: all answer tokens but the first of each, which prefill makes."""
    kv_tokens: float
    """Sum over those of the context that each reads."""
    prefill_tokens: float
    prefill_pairs: float


def work_of(lengths: npt.NDArray[np.int32], prompts: npt.NDArray[np.int32], *, share_prefix: bool) -> Work:
    """Work of answers [tickets, group] to prompts [tickets]; a shared prompt counts once for its group."""
    answers = lengths.astype(np.float64)
    context = prompts.astype(np.float64)[:, None]
    decoded = answers - 1.0
    # A decode step reads prompt + tokens so far: sum of prompt + j for j = 1 .. length - 1.
    kv = decoded * context + decoded * answers / 2.0
    times = 1 if share_prefix else lengths.shape[1]
    prefill = float(context.sum()) * times
    pairs = float((context * (context - 1.0)).sum()) / 2.0 * times
    return Work(float(decoded.sum()), float(kv.sum()), prefill, pairs)


def best_token_s(costs: CostModel, max_concurrent: int) -> float:
    """Fewest seconds a token, context aside, over all batch sizes that may run."""
    bases = np.asarray(costs.bases(max_concurrent)[1:])
    return float((bases / np.arange(1, max_concurrent + 1)).min())


def generation_bound(work: Work, costs: Sequence[CostModel], max_concurrent: int) -> float:
    """Seconds for `costs`' replicas together.

    With u(q, r) the cost of a unit of work q on replica r, and any weights y(r) that add up to 1, the time is at least
    the sum over q of amount(q) * min over r of y(r) * u(q, r); y is taken in proportion to each replica's speed.
    """
    units = np.array([[best_token_s(c, max_concurrent), c.kv_s, c.prefill_s, c.prefill_pair_s] for c in costs])
    amounts = np.array([work.tokens, work.kv_tokens, work.prefill_tokens, work.prefill_pairs])
    alone = units @ amounts
    if not alone.min() > 0.0:
        return 0.0
    weights = (1.0 / alone) / (1.0 / alone).sum()
    return float(amounts @ (weights[:, None] * units).min(axis=0))


def alone_s(lengths: Ints, prompts: Ints, costs: Sequence[CostModel]) -> Floats:
    """Seconds of each answer [n] running alone on the replica where it is fastest, its prompt in the cache already."""
    kv = (lengths - 1.0) * prompts + (lengths - 1.0) * lengths / 2.0
    # A table may say that a batch of two is faster than one: a bound must believe it.
    steps = [min([seconds for _, seconds in each.table] or [each.base(1)]) for each in costs]
    result: Floats = np.minimum.reduce(
        [lengths * step + kv * each.kv_s for step, each in zip(steps, costs, strict=True)]
    )
    return result


def longest_bound(longest_s: Sequence[float], train_s: Sequence[float], bound: int) -> float:
    """Seconds of the whole job by the recursion in the module's text; one entry a step."""
    ends = [0.0]
    for step, (alone, train) in enumerate(zip(longest_s, train_s, strict=True)):
        before = ends[max(0, step - bound)]
        ends.append(max(ends[-1], before + alone) + train)
    return ends[-1]


def trainer_bound(train_s: Sequence[float], first_answer_s: float) -> float:
    """Seconds of the whole job where the trainer never waits but for its first step."""
    return sum(train_s) + first_answer_s
