"""What a simulation says."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from drumroll_planner.bounds import Bounds


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One optimizer step."""

    step: int
    start_s: float
    trained_s: float
    """The update is done; publishing and a checkpoint may follow."""
    end_s: float
    """The trainer asks for the next step."""
    tokens: int
    """Of prompts and answers."""
    lag_mean: float
    lag_max: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What was done in all."""

    tokens: int = 0
    """Answer tokens generated, those that were lost or thrown away included."""
    tokens_trained: int = 0
    """Answer tokens that were trained."""
    prefill_tokens: int = 0
    preemptions: int = 0
    samples: int = 0
    """Samples that were finished."""
    tickets_trained: int = 0
    dropped: int = 0
    """Tickets that ended over the lag bound (lagPolicy drop)."""
    returned: int = 0
    """Samples that failing replicas lost."""
    leases: int = 0


@dataclass(frozen=True, slots=True)
class SimResult:
    """Times in seconds, idle shares from 0 to 1."""

    makespan_s: float
    """From the start to the end of the last step."""
    iteration_s: float
    """Mean time between the ends of steps, after the first maxPolicyLag + 2."""
    trainer_idle: float
    """Share of the makespan that the trainer waits."""
    rollout_idle: tuple[float, ...]
    """Share of the makespan in which a replica runs nothing, or stands still for a weight load."""
    rollout_empty: tuple[float, ...]
    """Share of its places that are empty, over the makespan: bubbles at the tail."""
    lag_mean: float
    lag_max: int
    bounds: Bounds
    counts: Counts
    steps: tuple[StepSpan, ...]
    queue: npt.NDArray[np.float64]
    """[events, 2]: time, complete groups that wait for a step; at the start of every step."""
    trained: npt.NDArray[np.int64]
    """[tickets trained]: the dispatch-order index of each, in the order of training."""
    spans: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    """[samples, 4]: replica, start, end, ticket; only where asked for."""
    loads: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))
    """[loads, 3]: replica, start, end of weight loads; only where asked for."""

    @property
    def samples_per_s(self) -> float:
        return self.counts.samples / self.makespan_s if self.makespan_s else 0.0
