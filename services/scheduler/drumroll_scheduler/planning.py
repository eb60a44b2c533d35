"""Makes the plan of each pass; a plan that was made before a restart is made again, and must be the same."""

from typing import cast

import numpy as np
import numpy.typing as npt
from drumroll_planner import records as r
from drumroll_planner.plan import PassInputs, Planner
from drumroll_planner.policy import Plan

from drumroll.errors import DataError


class PassPlanner:
    """Binds a planner to a job's seed and prompts."""

    def __init__(self, planner: Planner, *, seed: int, prompt_tokens: npt.NDArray[np.int32]) -> None:
        self._planner = planner
        self._seed = seed
        self._prompt_tokens = prompt_tokens

    def plan(self, epoch: int, journaled: r.PassPlanned | None) -> Plan:
        """The plan of a pass.

        Raises:
            DataError: `journaled` is the pass's plan as it was made first, and this one differs.
        """
        inputs = PassInputs(
            epoch=epoch,
            num_prompts=len(self._prompt_tokens),
            seed=self._seed,
            prompt_tokens=self._prompt_tokens,
            history=np.zeros(0, np.float32),
        )
        plan = self._planner.plan(inputs)
        if journaled is not None and journaled.plan_digest != plan.digest:
            raise DataError(
                f"the plan of pass {epoch} cannot be made again: it had {journaled.num_tickets} prompts and digest "
                f"{journaled.plan_digest[:16]} by planner {journaled.planner}, now it has {len(plan)} and digest "
                f"{plan.digest[:16]} by planner {plan.planner}; go on with the data, seed and planner of the start"
            )
        # The protocol's attributes are only read, which its declaration cannot say.
        return cast(Plan, plan)
