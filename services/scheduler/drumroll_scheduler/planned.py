"""Planned against actual: what a pass's plan said of lengths and times, and what came."""

import math
from dataclasses import dataclass, field

from drumroll_planner import records as r
from drumroll_planner.asp import AspPlan
from drumroll_planner.plan import PassPlan
from drumroll_planner.state import State


@dataclass(slots=True)
class PassWatch:
    """See the module. Sums over the newest pass; not durable."""

    epoch: int = -1
    predicted_s: float = 0.0
    """Of an iteration; 0 where the plan said nothing."""
    gain: float = 0.0
    _steps: int = 0
    _began: float | None = None
    _ended: float = 0.0
    _groups: int = 0
    _bias: float = 0.0
    _error: float = 0.0
    _notes: list[r.Noted] = field(default_factory=list)

    def planned(self, plan: PassPlan, now: float) -> None:
        """A pass's plan is taken; what is known of the pass before is told."""
        self._tell()
        self.epoch = plan.epoch
        self.predicted_s = self.gain = 0.0
        self._steps = self._groups = 0
        self._bias = self._error = 0.0
        self._began = None
        if isinstance(plan, AspPlan):
            choice = plan.explanation.choice
            self.predicted_s, self.gain = plan.explanation.iteration_s, choice.gain
            what = "shuffled" if choice.shape is None else f"in {choice.shape}"
            self._notes.append(r.Noted("PassPlanned", f"pass {plan.epoch} is {what}: {choice.reason}"))

    def decided(self, state: State, record: r.Decided) -> None:
        """A step, before it is applied."""
        for member in record.tickets:
            ticket = state.tickets.get(member.ticket)
            tokens = [sample.num_tokens for sample in member.samples]
            if ticket is None or not ticket.predicted_tokens or not sum(tokens) or member.ticket.epoch != self.epoch:
                continue
            off = math.log(sum(tokens) / len(tokens) / ticket.predicted_tokens)
            self._groups += 1
            self._bias += off
            self._error += abs(off)

    def trained(self, record: r.Trained, now: float) -> None:
        """A step is trained."""
        if self._began is None:
            self._began = now
            return
        self._steps += 1
        self._ended = now

    @property
    def iteration_s(self) -> float:
        """Mean time between trained steps since the plan was taken."""
        return (self._ended - self._began) / self._steps if self._steps and self._began is not None else 0.0

    def gauges(self) -> dict[str, float]:
        """For metrics.jsonl and views."""
        if self.epoch < 0:
            return {}
        groups = max(1, self._groups)
        return {
            "plan_epoch": float(self.epoch),
            "plan_predicted_iteration_s": self.predicted_s,
            "plan_actual_iteration_s": self.iteration_s,
            "plan_predicted_gain": self.gain,
            "plan_length_bias": self._bias / groups,
            "plan_length_error": self._error / groups,
        }

    def notes(self) -> list[r.Noted]:
        """What is to be journaled since the last call."""
        found, self._notes = self._notes, []
        return found

    def _tell(self) -> None:
        if self._groups < 1 or not self.predicted_s:
            return
        said = f"a step was to take {self.predicted_s:.3g} s and took {self.iteration_s:.3g} s"
        off = math.expm1(self._bias / self._groups)
        lengths = f"answers were {abs(off):.0%} {'longer' if off > 0 else 'shorter'} than predicted"
        self._notes.append(r.Noted("PlanChecked", f"pass {self.epoch}: {said}; {lengths}"))
