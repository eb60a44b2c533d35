"""What the trainer's steps take, learned from its own figures."""

from dataclasses import dataclass

from drumroll_planner import records as r
from drumroll_planner.state import State

_KEEP = 0.9


@dataclass(slots=True)
class TrainerCosts:
    """Forgetting means over steps, in seconds and answer tokens."""

    weight: float = 0.0
    tokens: float = 0.0
    train_s: float = 0.0
    publish_s: float = 0.0

    def trained(self, state: State, record: r.Trained) -> None:
        """Take a trained step in, before it is applied."""
        stats = record.stats
        step = state.steps.get(record.step)
        if "timing_s/train" not in stats or step is None:
            return
        tokens = sum(sample.num_tokens for ticket in step.decision.tickets for sample in ticket.samples)
        self.weight = self.weight * _KEEP + 1.0
        self._move("tokens", float(tokens))
        self._move("train_s", stats["timing_s/train"] + stats.get("timing_s/read", 0.0))
        self._move("publish_s", stats.get("timing_s/publish", 0.0))

    def _move(self, name: str, value: float) -> None:
        before = getattr(self, name)
        setattr(self, name, before + (value - before) / self.weight)
