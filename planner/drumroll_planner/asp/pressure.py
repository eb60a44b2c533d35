"""What sets the pace of a job: generation, training or its longest answers. Formulas, no simulation.

    generation = B * G * E[length] * sum over replicas of 1 / (c / tau(c))^-1, c samples running on each
    training   = time of a step over the minibatch's tokens, and of publishing
    longest    = E[longest of a minibatch] * tau(1)
    theta      = longest / (bound + 1) / max(generation, training)

Well above 1, long answers set the pace and their order matters. tau(b) is the time of a decode step with b sequences.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drumroll_planner.asp.fleet import FleetModel
from drumroll_planner.costs import CostModel
from drumroll_planner.rules import Rules


@dataclass(frozen=True, slots=True)
class Pressure:
    """Seconds a step each would take alone."""

    generation_s: float
    training_s: float
    longest_s: float
    """The longest answer of a minibatch, running alone."""
    theta: float

    @property
    def limited_by(self) -> str:
        """What sets the pace, in words."""
        if self.theta > 1.0:
            return "the longest answers set the pace"
        return f"{'generation' if self.generation_s >= self.training_s else 'the trainer'} sets the pace"


def pressure(fleet: FleetModel, rules: Rules, *, lengths: npt.NDArray[np.int32], prompt_tokens: float) -> Pressure:
    """From lengths [prompts, group] of one future, in random order, and the mean prompt."""
    per_step, size = rules.prompts_per_step, rules.group_size
    num_steps = max(1, len(lengths) // per_step)
    longest = lengths[: num_steps * per_step].max(axis=1)
    longest = longest[: len(longest) // num_steps * num_steps].reshape(num_steps, -1).max(axis=1)
    mean = float(lengths.mean())
    context = prompt_tokens + mean / 2
    in_flight = (rules.target_policy_lag + 1) * per_step * size / fleet.num_replicas
    running = max(1, min(fleet.max_concurrent, round(in_flight)))
    rate = sum(running / costs.decode(running, running * context) for costs in fleet.costs)
    prefill = sum(1.0 / max(costs.prefill(max(1, round(prompt_tokens))), 1e-9) for costs in fleet.costs)
    generation = per_step * (size * mean / rate + 1.0 / prefill)
    trainer = fleet.costs[0]
    tokens = per_step * size * (prompt_tokens + mean)
    training = trainer.train(tokens) + trainer.publish_s / fleet.publish_every
    alone = float(longest.mean()) * _alone(fleet.costs, prompt_tokens + float(longest.mean()) / 2)
    theta = alone / (rules.max_policy_lag + 1) / max(generation, training, 1e-9)
    return Pressure(generation, training, alone, theta)


def _alone(costs: tuple[CostModel, ...], context: float) -> float:
    """tau(1) of the median replica."""
    return float(np.median([each.decode(1, context) for each in costs]))


def window_times(longest_s: npt.NDArray[np.float64], *, least_s: float, bound: int) -> npt.NDArray[np.float64]:
    """When each step can be trained at the earliest [steps], from the time of its longest answer alone.

    E(s) = max(E(s - 1) + least, E(s - bound - 1) + longest(s)): no answer of step s may start before version
    s - bound is there. It orders candidates quickly; what it leaves out is what the simulation adds.
    """
    ends = [0.0] * (bound + 1)
    for alone in longest_s.tolist():
        ends.append(max(ends[-1] + least_s, ends[-bound - 1] + alone))
    return np.array(ends[bound + 1 :])
