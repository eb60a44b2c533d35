"""The tokens of one sample as the engine makes them: ids, log-probabilities and the version of each.

Values that no engine may give (NaN, infinite, above 0, or not one per token) end the sample here: nothing is repaired
and nothing is invented.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from drumroll_rollout.engine import Chunk

_ROUNDING = 1e-3
"""A log-probability may be this far above 0: float32 softmax over a large vocabulary rounds."""


class BadSample(Exception):
    """The engine's output cannot be trained on; the message names the place."""


@dataclass(slots=True)
class Transcript:
    """What this replica has made of a sample; tokens made earlier by others are not in it."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            BadSample: its lists disagree in length, or a log-probability is impossible; nothing of it is taken in.
        """
        counts = (len(chunk.token_ids), len(chunk.logprobs), len(chunk.versions))
        if len(set(counts)) != 1:
            raise BadSample("the engine gave {} tokens, {} log-probabilities and {} versions".format(*counts))
        for place, value in enumerate(chunk.logprobs, len(self.token_ids)):
            if not math.isfinite(value) or value > _ROUNDING:
                raise BadSample(f"token {place}: log-probability {value}")
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self.versions.extend(chunk.versions)
        if chunk.finish_reason != "abort":
            self.finish_reason = chunk.finish_reason

    def cut_where(self, unusable: Callable[[int], bool]) -> None:
        """Drop the tokens from the first one on whose version is `unusable`; then the sample is unfinished."""
        keep = next((place for place, version in enumerate(self.versions) if unusable(version)), len(self.versions))
        if keep < len(self.versions):
            del self.token_ids[keep:], self.logprobs[keep:], self.versions[keep:]
            self.finish_reason = None


def version_spans(versions: Sequence[int]) -> list[tuple[int, int, int]]:
    """(version, start, end) of each run of equal versions."""
    spans = []
    start = 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        spans.append((version, start, end))
        start = end
    return spans
