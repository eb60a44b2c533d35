"""The planner `asp`: an outlook, a fleet and the job's rules in; the order of a pass and its explanation out."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from drumroll_planner.asp.choose import Choice, choose
from drumroll_planner.asp.explanation import Explanation, Padding, Setting
from drumroll_planner.asp.fleet import Choosing, FleetModel
from drumroll_planner.asp.orders import shuffled, tail_batched
from drumroll_planner.asp.pressure import window_times
from drumroll_planner.asp.representative import micro_batches, padding, representativeness
from drumroll_planner.lengths.models import LengthReport
from drumroll_planner.lengths.outlook import Outlook
from drumroll_planner.plan import PassInputs, PassPlan, plan_digest
from drumroll_planner.rules import Rules

_PROFILE = 240
_MIX_STREAM = 0x6D6978


@dataclass(frozen=True, slots=True)
class AspPlan(PassPlan):
    """A pass's plan and why it is so."""

    explanation: Explanation

    @property
    def target_lag(self) -> int:
        """The target lag that it was made for."""
        return self.explanation.choice.target


class AspPlanner:
    """See the module. The same inputs give the same plan, byte for byte."""

    name = "asp"

    def __init__(self, *, rules: Rules, fleet: FleetModel, choosing: Choosing | None = None) -> None:
        self._rules, self._fleet, self._choosing = rules, fleet, choosing or Choosing()

    def plan(self, inputs: PassInputs, report: LengthReport | None = None) -> AspPlan:
        """The plan of a pass; without an outlook, or where it says the same of all prompts, the seeded shuffle.

        `report`: what is to be shown of the length models.
        """
        rules = replace(self._rules, num_prompts=inputs.num_prompts)
        outlook = inputs.outlook
        if outlook is None or not inputs.num_prompts:
            outlook = Outlook.constant(inputs.num_prompts, limit=1 << 30)
        choice = choose(
            outlook,
            inputs.prompt_tokens,
            rules=rules,
            fleet=self._fleet,
            choosing=self._choosing,
            seed=inputs.seed,
            epoch=inputs.epoch,
        )
        rows = self._rows(choice, outlook, inputs)
        tokens = np.zeros(len(rows), np.int32)
        if inputs.outlook is not None:
            tokens = np.maximum(1, outlook.expected().round()).astype(np.int32)[rows]
        explanation = self._explain(choice, outlook, rows, tokens, inputs, report)
        return AspPlan(
            epoch=inputs.epoch,
            planner=self.name,
            rows=rows,
            tokens=tokens,
            digest=plan_digest(rows),
            explanation=explanation,
        )

    def _rows(self, choice: Choice, outlook: Outlook, inputs: PassInputs) -> npt.NDArray[np.int64]:
        if choice.shape is None:
            return shuffled(inputs.num_prompts, seed=inputs.seed, epoch=inputs.epoch)
        return tail_batched(
            outlook.longest(self._rules.group_size),
            per_step=self._rules.prompts_per_step,
            shape=choice.shape,
            seed=inputs.seed,
            epoch=inputs.epoch,
        )

    def _explain(
        self,
        choice: Choice,
        outlook: Outlook,
        rows: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int32],
        inputs: PassInputs,
        report: LengthReport | None,
    ) -> Explanation:
        per_step = self._rules.prompts_per_step
        longest = self._longest(outlook, rows)
        alone = self._fleet.costs[0].decode(1, float(longest.mean()) if len(longest) else 0.0)
        least = 0.0
        if choice.pressure is not None:
            least = max(choice.pressure.generation_s, choice.pressure.training_s)
        ends = window_times(longest * alone, least_s=least, bound=self._rules.max_policy_lag)
        if choice.chosen is not None and len(ends):
            # The formula gives the course, the simulation the level.
            ends = ends * (choice.chosen.iteration_s * len(ends) / max(float(ends[-1]), 1e-9))
        points = np.unique(np.linspace(0, max(0, len(longest) - 1), _PROFILE).round().astype(np.int64))
        shown = points if len(longest) else points[:0]
        cycle = 1 if choice.shape is None else choice.shape.cycle
        return Explanation(
            setting=Setting.of(
                self._rules,
                self._fleet,
                self._choosing,
                num_prompts=inputs.num_prompts,
                epoch=inputs.epoch,
                seed=inputs.seed,
            ),
            choice=choice,
            mix=representativeness(tokens, per_step=per_step, cycle=cycle),
            profile=tuple(float(value) for value in longest[shown].round(1)),
            mean_tokens=float(tokens.mean()) if len(tokens) else 0.0,
            ends_s=tuple(float(value) for value in ends[shown].round(3)),
            lengths=report,
            padding=self._padding(outlook, rows, inputs.seed),
            unit=outlook.unit,
        )

    def _longest(self, outlook: Outlook, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Expected longest answer of each whole minibatch: of its riskiest prompts, a high guess [steps]."""
        per_step, size = self._rules.prompts_per_step, self._rules.group_size
        num_steps = len(rows) // per_step
        risk = outlook.quantile(1.0 - 1.0 / (2.0 * size * max(1, per_step) ** 0.5))
        by_step = risk[rows[: num_steps * per_step]].reshape(num_steps, per_step)
        return np.asarray(by_step.max(axis=1, initial=0.0), dtype=np.float64)

    def _padding(self, outlook: Outlook, rows: npt.NDArray[np.int64], seed: int) -> Padding | None:
        size, per_step = self._fleet.micro_batch, self._rules.prompts_per_step
        if size is None or not len(rows):
            return None
        generator = np.random.Generator(np.random.PCG64([seed, _MIX_STREAM]))
        future = outlook.take(rows[: 8 * per_step]).draw(generator, self._rules.group_size)
        steps = [future[start : start + per_step].reshape(-1) for start in range(0, len(future), per_step)]
        drawn = [padding(step, np.arange(len(step)), size) for step in steps]
        cut = [padding(step, micro_batches(step, size), size) for step in steps]
        return Padding(size, float(np.mean(drawn)), float(np.mean(cut)))
