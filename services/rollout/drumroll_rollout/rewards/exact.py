"""Equality with the given answer, as text."""

import re
from collections.abc import Sequence
from typing import Any

from drumroll_rollout.rewards.rewards import Batch, Score


def accepted_answers(answer: Any) -> list[str]:
    """The answers of a row as text: a list means that each of them is right."""
    values = answer if isinstance(answer, list) else [answer]
    return [str(value).strip() for value in values if value is not None]


def extract(text: str, pattern: re.Pattern[str] | None) -> str | None:
    """The answer in a completion: the last match's first group, or the whole text without a pattern; None: no match."""
    if pattern is None:
        return text.strip()
    last = None
    for match in pattern.finditer(text):
        last = match
    if last is None:
        return None
    found = last.group(1) if pattern.groups else last.group(0)
    return None if found is None else found.strip()


class ExactReward:
    """1.0 where the extracted answer equals an accepted one, else 0.0."""

    name = "exact"
    keeps_processes = False

    def __init__(self, pattern: str | None) -> None:
        self._pattern = None if pattern is None else re.compile(pattern)

    def score(self, batch: Batch) -> Sequence[Score]:
        return [
            (1.0 if extract(text, self._pattern) in accepted_answers(row["answer"]) else 0.0, {})
            for text, row in zip(batch.completions, batch.inputs, strict=True)
        ]
