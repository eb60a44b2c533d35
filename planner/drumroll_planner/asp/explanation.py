"""Everything that a plan says of itself, as plain values: in the plan's file, on the terminal, in pictures."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drumroll_planner.asp.choose import Choice, Trial
from drumroll_planner.asp.fleet import Choosing, FleetModel
from drumroll_planner.asp.orders import Shape
from drumroll_planner.asp.pressure import Pressure
from drumroll_planner.asp.representative import Representativeness
from drumroll_planner.lengths.models import LengthReport
from drumroll_planner.lengths.scoring import Score
from drumroll_planner.rules import Rules

Profile = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What the plan was made for."""

    epoch: int
    seed: int
    num_prompts: int
    prompts_per_step: int
    group_size: int
    max_policy_lag: int
    num_replicas: int
    max_concurrent: int
    costs: str
    """Name of the cost model."""
    threshold: float
    longest_cycle: int

    @classmethod
    def of(
        cls, rules: Rules, fleet: FleetModel, choosing: Choosing, *, num_prompts: int, epoch: int, seed: int
    ) -> "Setting":
        names = sorted({costs.name for costs in fleet.costs})
        return cls(
            epoch=epoch,
            seed=seed,
            num_prompts=num_prompts,
            prompts_per_step=rules.prompts_per_step,
            group_size=rules.group_size,
            max_policy_lag=rules.max_policy_lag,
            num_replicas=fleet.num_replicas,
            max_concurrent=fleet.max_concurrent,
            costs=", ".join(names),
            threshold=choosing.threshold,
            longest_cycle=choosing.longest_cycle,
        )


@dataclass(frozen=True, slots=True)
class Padding:
    """Share of padded tokens that is padding, predicted."""

    micro_batch: int
    as_drawn: float
    """Micro-batches cut in any order."""
    sorted: float
    """Cut after sorting the minibatch by length."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """See the module."""

    setting: Setting
    choice: Choice
    mix: Representativeness
    profile: Profile
    """Expected longest answer of a minibatch along the pass, in tokens, at most 240 points."""
    mean_tokens: float
    ends_s: Profile
    """When the minibatches of `profile` are expected to be trained, in seconds from the pass's start."""
    lengths: LengthReport | None = None
    padding: Padding | None = None
    unit: str = "tokens"

    @property
    def iteration_s(self) -> float:
        """Expected time of a step; 0 where nothing was simulated."""
        chosen = self.choice.chosen
        return 0.0 if chosen is None else chosen.iteration_s

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` restores it exactly."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Explanation":
        """What `to_dict` gave, through JSON or not."""
        lengths, padding = data["lengths"], data["padding"]
        return cls(
            setting=Setting(**data["setting"]),
            choice=_choice(data["choice"]),
            mix=Representativeness(**data["mix"]),
            profile=tuple(data["profile"]),
            mean_tokens=data["mean_tokens"],
            ends_s=tuple(data["ends_s"]),
            lengths=None if lengths is None else _report(lengths),
            padding=None if padding is None else Padding(**padding),
            unit=data["unit"],
        )


def _shape(data: Mapping[str, int] | None) -> Shape | None:
    return None if data is None else Shape(**data)


def _choice(data: Mapping[str, Any]) -> Choice:
    trials = tuple(Trial(**{**trial, "shape": _shape(trial["shape"])}) for trial in data["trials"])
    force = None if data["pressure"] is None else Pressure(**data["pressure"])
    return Choice(**{**data, "shape": _shape(data["shape"]), "pressure": force, "trials": trials})


def _report(data: Mapping[str, Any]) -> LengthReport:
    boards = {name: tuple(Score(**score) for score in data[name]) for name in _BOARDS}
    return LengthReport(**{**data, **boards})


_BOARDS = ("first_scores", "again_scores", "sibling_scores")
