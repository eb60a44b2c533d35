"""The planner's interface: one plan per pass over the data, made before the pass begins."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from drumroll_planner.lengths.outlook import Outlook


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What a plan is made from."""

    epoch: int
    num_prompts: int
    seed: int
    prompt_tokens: npt.NDArray[np.int32]
    """Length of each prompt, by row."""
    history: "npt.NDArray[np.float32]"
    """Mean answer length of each row in the passes before, in tokens; NaN where there is none."""
    outlook: "Outlook | None" = None
    """What the length models expect of every row; None where there is nothing to expect."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Which row stands at each ordinal of a pass; implements `policy.Plan`."""

    epoch: int
    planner: str
    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    digest: str

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, ordinal: int) -> int:
        return int(self.rows[ordinal])

    def predicted_tokens(self, ordinal: int) -> int:
        return int(self.tokens[ordinal])


class Planner(Protocol):
    """Makes a pass's plan; the same inputs give the same plan, byte for byte."""

    name: str

    def plan(self, inputs: PassInputs) -> PassPlan: ...


def plan_digest(rows: npt.NDArray[np.int64]) -> str:
    """SHA-256 of the order, hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(rows, dtype="<i8").tobytes()).hexdigest()
