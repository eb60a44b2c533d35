"""Collects what a simulation did and sums it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from drumroll_planner.bounds import Bounds, alone_s, generation_bound, longest_bound, trainer_bound, work_of
from drumroll_planner.sim.result import Counts, SimResult, StepSpan

if TYPE_CHECKING:
    from drumroll_planner.sim.dispatcher import Chosen
    from drumroll_planner.sim.engine import Engine
    from drumroll_planner.sim.fleet import Replica
    from drumroll_planner.sim.job import SimJob
    from drumroll_planner.sim.request import Request


class Recorder:
    """`record`: also keep every sample's and load's span, for pictures."""

    def __init__(self, job: SimJob, *, record: bool) -> None:
        self._job = job
        self._record = record
        self._steps: list[StepSpan] = []
        self._members: list[npt.NDArray[np.int64]] = []
        self._train_s: list[float] = []
        self._queue: list[tuple[float, int]] = []
        self._spans: list[tuple[int, float, float, int]] = []
        self._loads: list[tuple[int, float, float]] = []
        self._load_s: list[float] = []
        self._occupied_s: list[float] = []
        self._lost_tokens = 0
        self._lost_prefill = 0
        self._lost_preemptions = 0
        self.num_samples = 0
        self.num_leases = 0
        self.num_returned = 0
        self.num_dropped = 0
        self._sums = job.lengths.sum(axis=1, dtype=np.int64)

    # -- events --------------------------------------------------------------------------------------------------

    def joined(self) -> None:
        """One more replica."""
        self._load_s.append(0.0)
        self._occupied_s.append(0.0)

    def lost(self, engine: Engine) -> None:
        """An engine is gone; its counts would go with it."""
        self._lost_tokens += engine.num_tokens
        self._lost_prefill += engine.num_prefill_tokens
        self._lost_preemptions += engine.num_preemptions

    def sample(self, replica: int, start: float, end: float, request: Request) -> None:
        """An answer is complete."""
        self.num_samples += 1
        self._occupied_s[replica] += end - start
        if self._record:
            self._spans.append((replica, start, end, request.ticket))

    def load(self, replica: int, start: float, end: float) -> None:
        """A weight load."""
        self._load_s[replica] += end - start
        if self._record:
            self._loads.append((replica, start, end))

    def queue(self, now: float, waiting: int) -> None:
        """So many complete groups wait for a step."""
        self._queue.append((now, waiting))

    # -- steps ---------------------------------------------------------------------------------------------------

    def _places(self, chosen: Chosen) -> npt.NDArray[np.int64]:
        return np.array([ticket for ticket, _ in chosen], dtype=np.int64) % len(self._sums)

    def tokens_of(self, chosen: Chosen) -> int:
        """Tokens of prompts and answers of a step."""
        places = self._places(chosen)
        prompts = self._job.prompt_tokens[places].sum(dtype=np.int64) * self._job.rules.group_size
        return int(self._sums[places].sum() + prompts)

    def train_s(self, chosen: Chosen) -> float:
        """Seconds that the trainer takes for a step."""
        costs = self._job.trainer_costs
        if self._job.micro_batch is None:
            return costs.train(self.tokens_of(chosen))
        places = self._places(chosen)
        whole = self._job.lengths[places] + self._job.prompt_tokens[places][:, None]
        return costs.train(0, padded=padded_tokens(whole.ravel(), self._job.micro_batch))

    def step(self, step: int, start: float, trained: float, end: float, chosen: Chosen) -> None:
        """A step is committed."""
        lags = [step - version for _, version in chosen]
        mean, most = sum(lags) / len(lags), max(lags)
        self._steps.append(StepSpan(step, start, trained, end, self.tokens_of(chosen), mean, most))
        self._members.append(np.array([ticket for ticket, _ in chosen], dtype=np.int64))

    # -- the end -------------------------------------------------------------------------------------------------

    def result(self, now: float, replicas: list[Replica]) -> SimResult:
        """Everything, summed up at the end of the last step."""
        steps = self._steps
        makespan = steps[-1].end_s if steps else now
        busy = [replica.spent_s + replica.engine.busy_s for replica in replicas]
        warm = min(self._job.rules.max_policy_lag + 2, len(steps) - 1)
        first = steps[warm - 1].end_s if warm > 0 else 0.0
        counted = max(1, len(steps) - warm)
        lags = [span.lag_mean for span in steps]
        training = sum(span.end_s - span.start_s for span in steps)
        trained = np.concatenate(self._members)
        return SimResult(
            makespan_s=makespan,
            iteration_s=(makespan - first) / counted,
            trainer_idle=1.0 - training / makespan if makespan else 0.0,
            rollout_idle=tuple(max(0.0, 1.0 - time / makespan) if makespan else 0.0 for time in busy),
            rollout_empty=tuple(self._empty(makespan, replica) for replica in range(len(replicas))),
            lag_mean=float(np.average(lags, weights=[len(each) for each in self._members])),
            lag_max=max(span.lag_max for span in steps),
            bounds=self._bounds(replicas),
            counts=self._counts(replicas, trained),
            steps=tuple(steps),
            queue=np.array(self._queue, dtype=np.float64).reshape(-1, 2),
            trained=trained,
            spans=np.array(self._spans, dtype=np.float64).reshape(-1, 4),
            loads=np.array(self._loads, dtype=np.float64).reshape(-1, 3),
        )

    def _empty(self, makespan: float, replica: int) -> float:
        places = makespan * self._job.max_concurrent
        return max(0.0, 1.0 - self._occupied_s[replica] / places) if places else 0.0

    def _counts(self, replicas: list[Replica], trained: npt.NDArray[np.int64]) -> Counts:
        engines = [replica.engine for replica in replicas]
        return Counts(
            tokens=self._lost_tokens + sum(engine.num_tokens for engine in engines),
            tokens_trained=int(self._sums[trained % len(self._sums)].sum()),
            prefill_tokens=self._lost_prefill + sum(engine.num_prefill_tokens for engine in engines),
            preemptions=self._lost_preemptions + sum(engine.num_preemptions for engine in engines),
            samples=self.num_samples,
            tickets_trained=len(trained),
            dropped=self.num_dropped,
            returned=self.num_returned,
            leases=self.num_leases,
        )

    def _bounds(self, replicas: list[Replica]) -> Bounds:
        job = self._job
        costs = [replica.costs for replica in replicas]
        places = np.concatenate(self._members) % len(self._sums)
        work = work_of(job.lengths[places], job.prompt_tokens[places], share_prefix=job.share_prefix)
        group = job.rules.group_size
        prompts = np.repeat(job.prompt_tokens[places].astype(np.int64), group)
        alone = alone_s(job.lengths[places].astype(np.int64).ravel(), prompts, costs)
        sizes = np.cumsum([0, *(len(each) * group for each in self._members)])[:-1]
        longest = np.maximum.reduceat(alone, sizes)
        train = [span.trained_s - span.start_s for span in self._steps]
        whole = [span.end_s - span.start_s for span in self._steps]
        waits = job.rules.lag_policy != "mask"
        return Bounds(
            generation_s=generation_bound(work, costs, job.max_concurrent),
            trainer_s=trainer_bound(whole, float(longest[0])),
            longest_s=longest_bound(longest.tolist(), train, job.rules.max_policy_lag) if waits else 0.0,
        )


def padded_tokens(lengths: npt.NDArray[np.int64] | npt.NDArray[np.int32], size: int) -> int:
    """Tokens of padded micro-batches of `size` sequences, cut from `lengths` sorted: each as wide as its longest."""
    ordered = np.sort(lengths)[::-1]
    widest = ordered[::size].astype(np.int64)
    counts = np.minimum(size, len(ordered) - size * np.arange(len(widest)))
    return int((widest * counts).sum())
