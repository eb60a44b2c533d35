"""A scorer for the worker's tests: the reward is the length of the answer, and errors come when they are asked for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from drumroll_rollout.rewards import ScoreResult


@dataclass(slots=True)
class LengthScorer:
    """Scores an answer with its number of tokens; keeps all texts that it saw."""

    errors: dict[object, list[Exception]] = field(default_factory=dict)
    """Prompt to the errors of its next calls."""
    stuck: bool = False
    """While it is set, no call ends."""
    texts: list[str] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)

    async def score(
        self,
        prompts: list[Any],
        completions_text: list[str],
        completion_ids: list[list[int]],
        inputs: list[dict[str, Any]],
        finished: list[bool],
    ) -> Sequence[ScoreResult]:
        """One result per completion."""
        if self.stuck:
            await asyncio.Event().wait()
        for prompt in prompts:
            if errors := self.errors.get(prompt):
                raise errors.pop(0)
        self.texts.extend(completions_text)
        self.finished.extend(finished)
        return [ScoreResult(float(len(ids)), {"tokens": float(len(ids))}) for ids in completion_ids]
