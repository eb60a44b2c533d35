"""What comes out of scoring: a result per completion, a crash, or a refusal of the user's function.

RewardError (drumroll.errors)   the function does not keep its contract: the run stops, nothing is trained on
RewardCrash                     this call failed (exception, timeout, memory): the samples are handed back and counted
"""

from dataclasses import dataclass

from drumroll.errors import DrumrollError


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The reward of one completion."""

    reward: float
    parts: dict[str, float]
    """Named parts, for metrics; never trained on."""


class RewardCrash(DrumrollError):
    """A reward could not be computed. It is not a wrong answer and never becomes a number."""
