"""Which order, and which target lag: candidates are simulated on futures drawn from the outlook, and compared.

Both are simulated on the same futures, and first come stays, to the last ticket, unless the mean of the paired gains
is above the threshold and above what chance would give: where engines are saturated or the trainer is the bottleneck,
order does harm. Large data sets are chosen for on a sample of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from drumroll_planner.asp.fleet import Choosing, FleetModel
from drumroll_planner.asp.orders import Shape, cycle_sizes, shuffled, tail_batched
from drumroll_planner.asp.pressure import Pressure, pressure, window_times
from drumroll_planner.lengths.outlook import Outlook
from drumroll_planner.plan import PassPlan
from drumroll_planner.rules import Rules
from drumroll_planner.sim import SimJob, SimResult, simulate

Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]

_FUTURE_STREAM = 0x66757475
_CYCLES = (4, 8, 16, 32, 64)
_TRIED = 2
"""Shapes that the formulas like best are simulated."""
_WORTH_SIMULATING = 0.03
_MOST_STEPS = 128
_FEWEST_FUTURES = 2


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate in the simulator, over all futures."""

    shape: Shape | None
    """None: first come."""
    target: int
    iteration_s: float
    lag_mean: float
    worst: float
    """Time against first come at the job's own target in the worst future: 0.9 is 10 % less."""
    error: float = 0.0
    """Standard error of the change against first come at the job's own target, future by future."""

    @property
    def name(self) -> str:
        return "first come" if self.shape is None else str(self.shape)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and from what."""

    shape: Shape | None
    target: int
    reason: str
    pressure: Pressure | None
    trials: tuple[Trial, ...]
    bound_s: float
    """Lower bound of the chosen order's iteration time; 0 where nothing was simulated."""
    steps_simulated: int
    futures: int

    @property
    def gain(self) -> float:
        """Predicted share of time saved against first come at the chosen target."""
        first = [trial for trial in self.trials if trial.shape is None and trial.target == self.target]
        chosen = self.chosen
        return 0.0 if chosen is None or not first else 1.0 - chosen.iteration_s / first[0].iteration_s

    @property
    def chosen(self) -> Trial | None:
        """The trial of what was chosen."""
        found = [trial for trial in self.trials if (trial.shape, trial.target) == (self.shape, self.target)]
        return found[0] if found else None


def is_sure(gains: Sequence[float], threshold: float) -> bool:
    """Whether paired gains, one a future, are above the threshold on average, and above chance.

    Chance: twice their standard error, or three times for two futures (one-sided 90 % of Student's t is 1.9 for three
    and 3.1 for two). A single future, or a future with a loss, never suffices.
    """
    if len(gains) < _FEWEST_FUTURES or min(gains) <= 0.0:
        return False
    times = 3.0 if len(gains) == _FEWEST_FUTURES else 2.0
    mean = float(np.mean(gains))
    return mean >= threshold and mean > times * standard_error(gains)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 for a single value."""
    return float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0


def shapes(longest_cycle: int, num_steps: int) -> tuple[Shape, ...]:
    """Candidates: cycles that fit into the pass and below the limit, a quarter, half or all of each sorted."""
    fitting = [cycle for cycle in _CYCLES if cycle <= min(longest_cycle, num_steps)]
    return tuple(sorted({Shape(cycle, tail) for cycle in fitting for tail in (cycle // 4, cycle // 2, cycle)}))


def choose(
    outlook: Outlook, prompt_tokens: Ints, *, rules: Rules, fleet: FleetModel, choosing: Choosing, seed: int, epoch: int
) -> Choice:
    """See the module. `outlook` and `prompt_tokens` are of all rows of the pass."""
    if outlook.is_constant:
        reason = "nothing is known that would tell one prompt from another"
        return Choice(None, rules.target_policy_lag, reason, None, (), 0.0, 0, 0)
    bench = _Bench(outlook, prompt_tokens, rules=rules, fleet=fleet, choosing=choosing, seed=seed, epoch=epoch)
    return bench.choose()


class _Bench:
    """The sample, its futures, and what was simulated on them."""

    def __init__(
        self,
        outlook: Outlook,
        prompt_tokens: Ints,
        *,
        rules: Rules,
        fleet: FleetModel,
        choosing: Choosing,
        seed: int,
        epoch: int,
    ) -> None:
        self._fleet, self._choosing, self._seed, self._epoch = fleet, choosing, seed, epoch
        per_step, in_pass = rules.prompts_per_step, max(1, len(outlook) // rules.prompts_per_step)
        self.shapes = shapes(choosing.longest_cycle, in_pass)
        per_run = per_step * rules.group_size
        wanted = min(in_pass, max(2 * max((shape.cycle for shape in self.shapes), default=4), 24))
        affordable = choosing.budget_samples // max(1, per_run * self._num_runs(choosing, rules))
        self.num_steps = int(min(in_pass, _MOST_STEPS, max(wanted, affordable)))
        runs = choosing.budget_samples // max(1, per_run * self.num_steps)
        self.num_futures = int(
            np.clip(runs // (_TRIED + 2), _FEWEST_FUTURES, max(_FEWEST_FUTURES, choosing.num_futures))
        )
        generator = np.random.Generator(np.random.PCG64([seed, epoch, _FUTURE_STREAM]))
        size = min(len(outlook), self.num_steps * per_step)
        rows = np.sort(generator.permutation(len(outlook))[:size]).astype(np.int64)
        self._outlook = outlook.take(rows)
        self._prompts = prompt_tokens[rows]
        self._risk = self._outlook.longest(rules.group_size)
        self._futures = [self._outlook.draw(generator, rules.group_size) for _ in range(self.num_futures)]
        self._rules = replace(
            rules,
            num_prompts=size,
            steps=None,
            epochs=1,
            order="plan",
            dynamic_sampling=False,
            max_stream_bytes=1 << 62,
        )
        self._done: dict[tuple[Shape | None, int], tuple[Trial, tuple[SimResult, ...]]] = {}

    def _num_runs(self, choosing: Choosing, rules: Rules) -> int:
        return choosing.num_futures * (1 + _TRIED) * max(1, min(2, len(choosing.targets(rules))))

    def choose(self) -> Choice:
        own = self._rules.target_policy_lag
        force = pressure(self._fleet, self._rules, lengths=self._futures[0], prompt_tokens=float(self._prompts.mean()))
        targets = self._choosing.targets(self._rules)
        liked = self._liked(force)
        for target in targets:
            self.trial(None, target)
        for candidate in liked:
            self.trial(candidate, own)
        best = min(liked, key=lambda shape: self.trial(shape, own).iteration_s, default=None)
        if best is not None:
            for target in targets:
                self.trial(best, target)
        shape, target = self._decide(best, targets)
        reason = self._reason(shape, best, target, force, liked)
        _, results = self._done[shape, target]
        bound = float(np.mean([result.bounds.best_s for result in results])) / max(1, self.num_steps)
        trials = tuple(trial for trial, _ in self._done.values())
        return Choice(shape, target, reason, force, trials, bound, self.num_steps, self.num_futures)

    def _decide(self, best: Shape | None, targets: Sequence[int]) -> tuple[Shape | None, int]:
        """The order first, by its gain at the best target of both; then the smallest target that is as good."""
        first = {target: self.trial(None, target).iteration_s for target in targets}
        shape = None
        if best is not None:
            other = {target: self.trial(best, target).iteration_s for target in targets}
            own, at = (min(times, key=lambda target: times[target]) for times in (first, other))
            if is_sure(self._gains((best, at), (None, own)), self._choosing.threshold):
                shape, first = best, other
        limit = (1.0 + self._choosing.target_slack) * min(first.values())
        return shape, min(target for target, seconds in first.items() if seconds <= limit)

    def _gains(self, one: tuple[Shape | None, int], other: tuple[Shape | None, int]) -> list[float]:
        """Share of time that one candidate saves against another, future by future."""
        pairs = zip(self._done[one][1], self._done[other][1], strict=True)
        return [1.0 - _seconds(mine) / max(_seconds(theirs), 1e-9) for mine, theirs in pairs]

    def _liked(self, force: Pressure) -> tuple[Shape, ...]:
        """The shapes with the shortest time by formula; none where that is hardly shorter than first come."""
        least = max(force.generation_s, force.training_s)
        first = self._formula(None, least)
        times = {shape: self._formula(shape, least) for shape in self.shapes}
        better = [shape for shape in self.shapes if times[shape] < (1.0 - _WORTH_SIMULATING) * first]
        liked: list[Shape] = []
        for shape in sorted(better, key=lambda shape: (times[shape], shape)):
            if all(shape.cycle != other.cycle for other in liked):
                liked.append(shape)
        return tuple(liked[:_TRIED])

    def _formula(self, shape: Shape | None, least_s: float) -> float:
        order = self._order(shape)[: self.num_steps * self._rules.prompts_per_step]
        alone = self._fleet.costs[0].decode(1, float(self._prompts.mean()))
        ends = [
            window_times(
                future[order].reshape(-1, self._rules.prompts_per_step * self._rules.group_size).max(axis=1) * alone,
                least_s=least_s,
                bound=self._rules.max_policy_lag,
            )[-1]
            for future in self._futures
        ]
        return float(np.mean(ends))

    def _order(self, shape: Shape | None) -> Rows:
        if shape is None:
            return shuffled(len(self._outlook), seed=self._seed, epoch=self._epoch)
        per_step = self._rules.prompts_per_step
        return tail_batched(self._risk, per_step=per_step, shape=shape, seed=self._seed, epoch=self._epoch)

    def trial(self, shape: Shape | None, target: int) -> Trial:
        """Simulate a candidate on all futures, once."""
        if (shape, target) not in self._done:
            order = self._order(shape)
            rules = replace(self._rules, target_policy_lag=target)
            results = tuple(self._simulate(order, future, rules) for future in self._futures)
            times = [_seconds(result) for result in results]
            own = self._done.get((None, self._rules.target_policy_lag))
            against = times if own is None else [_seconds(result) for result in own[1]]
            ratios = [one / max(other, 1e-9) for one, other in zip(times, against, strict=True)]
            lag = float(np.mean([result.lag_mean for result in results]))
            trial = Trial(shape, target, float(np.mean(times)), lag, max(ratios), standard_error(ratios))
            self._done[shape, target] = trial, results
        return self._done[shape, target][0]

    def _simulate(self, order: Rows, future: Ints, rules: Rules) -> SimResult:
        tokens = np.zeros(len(order), np.int32)
        fleet = self._fleet
        job = SimJob(
            rules=rules,
            plan=PassPlan(epoch=0, planner="trial", rows=order, tokens=tokens, digest=""),
            lengths=future[order],
            prompt_tokens=self._prompts[order],
            costs=fleet.costs,
            num_replicas=fleet.num_replicas,
            max_concurrent=fleet.max_concurrent,
            chunk_tokens=fleet.chunk_tokens,
            kv_tokens=fleet.kv_tokens,
            publish_every=fleet.publish_every,
            checkpoint_every=fleet.checkpoint_every,
            micro_batch=fleet.micro_batch,
            routing="step_time",
        )
        return simulate(job, mode="fast")

    def _reason(
        self, shape: Shape | None, best: Shape | None, target: int, force: Pressure, liked: Sequence[Shape]
    ) -> str:
        threshold = f"{self._choosing.threshold:.0%}"
        if shape is not None:
            gain = 1.0 - self.trial(shape, target).iteration_s / self.trial(None, target).iteration_s
            return f"it is predicted to save {gain:.0%} of first come's time, more than the threshold of {threshold}"
        if best is not None:
            own = self._rules.target_policy_lag
            trial = self.trial(best, own)
            gain = 1.0 - trial.iteration_s / self.trial(None, own).iteration_s
            low = "below" if gain < self._choosing.threshold else f"+-{trial.error:.1%}, not surely above"
            return f"the best other order, {best}, is predicted to save {gain:.1%}: {low} the threshold of {threshold}"
        if not self.shapes:
            return "the pass is too short for cycles, or cycles are limited to one step"
        return f"{force.limited_by} (theta {force.theta:.2f}): no order can save {_WORTH_SIMULATING:.0%}"


def _seconds(result: SimResult) -> float:
    """Mean time of a step over the whole simulated run, so that all of a cycle counts."""
    return result.makespan_s / max(1, len(result.steps))


def cycle_of(num_steps: int, shape: Shape) -> int:
    """Steps of the longest cycle that a pass of so many steps really has."""
    return int(cycle_sizes(num_steps, shape.cycle).max())
