"""Planners: which row stands where in a pass. Pure: the same inputs give the same plan, byte for byte."""

import numpy as np
import numpy.typing as npt

from drumroll_planner.plan import PassInputs, PassPlan, Planner, plan_digest


def expected_tokens(inputs: PassInputs, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Mean answer length of each row in earlier passes, in tokens, in plan order; 0 where there is none."""
    if len(inputs.history) == 0:
        return np.zeros(len(rows), dtype=np.int32)
    return np.nan_to_num(inputs.history[rows], nan=0.0).round().astype(np.int32)


def _pass_plan(name: str, inputs: PassInputs, rows: npt.NDArray[np.int64]) -> PassPlan:
    tokens = expected_tokens(inputs, rows)
    return PassPlan(epoch=inputs.epoch, planner=name, rows=rows, tokens=tokens, digest=plan_digest(rows))


class ShufflePlanner:
    """A shuffle seeded by (seed, epoch): every pass has its own order."""

    name = "asp"

    def plan(self, inputs: PassInputs) -> PassPlan:
        generator = np.random.Generator(np.random.PCG64([inputs.seed, inputs.epoch]))
        rows = generator.permutation(inputs.num_prompts).astype(np.int64)
        return _pass_plan(self.name, inputs, rows)


class FifoPlanner:
    """The data set's own order, in every pass."""

    name = "fifo"

    def plan(self, inputs: PassInputs) -> PassPlan:
        return _pass_plan(self.name, inputs, np.arange(inputs.num_prompts, dtype=np.int64))


def build_planner(name: str) -> Planner:
    """The planner of that name.

    Raises:
        ValueError: there is no such planner.
    """
    planners: dict[str, Planner] = {planner.name: planner for planner in (ShufflePlanner(), FifoPlanner())}
    if name not in planners:
        raise ValueError(f"planner {name!r} is not known; write one of {', '.join(sorted(planners))}")
    return planners[name]
