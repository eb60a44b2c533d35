"""A fleet in a computer: engines, trainer and the scheduler's own policy code against modelled costs."""

from typing import Literal

from drumroll_planner.sim.direct import DirectDispatcher
from drumroll_planner.sim.fleet import Fleet
from drumroll_planner.sim.job import Failure, Join, SimJob
from drumroll_planner.sim.policy_run import PolicyDispatcher
from drumroll_planner.sim.result import Counts, SimResult, StepSpan

__all__ = ["Counts", "Failure", "Join", "SimJob", "SimResult", "StepSpan", "simulate"]


def simulate(job: SimJob, *, mode: Literal["policy", "fast"] = "policy", record: bool = False) -> SimResult:
    """Run a job to its end. `policy`: the scheduler's own code decides; `fast`: the same rules at ticket level.

    `record` also keeps the spans of samples and weight loads, for pictures.

    Raises:
        JobFailed: the job cannot end; the message says where it stands.
    """
    fleet = Fleet(job, record=record)
    return fleet.run(PolicyDispatcher(fleet) if mode == "policy" else DirectDispatcher(fleet))
