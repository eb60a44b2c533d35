"""The scorers of reasoning-gym's generated tasks.

An entry is generated again from (name, seed, size, config, index), since entries hold values that a file cannot; its
own data set then scores the answer: the last `<answer>…</answer>` of the completion, or the whole text where there is
none.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from drumroll.data.tasks import create
from drumroll_rollout.rewards.rewards import Batch, Score

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def extract_answer(text: str) -> str:
    """What a completion answers."""
    found = _ANSWER.findall(text)
    return str(found[-1] if found else text).strip()


class TaskReward:
    """reasoning-gym's score, 0.0 to 1.0."""

    name = "tasks"
    keeps_processes = False

    def __init__(self) -> None:
        self._datasets: dict[str, Any] = {}

    def score(self, batch: Batch) -> Sequence[Score]:
        return [
            (self._score(text, row["metadata"]["task"]), {})
            for text, row in zip(batch.completions, batch.inputs, strict=True)
        ]

    def _score(self, text: str, task: dict[str, Any]) -> float:
        key = json.dumps([task["name"], task["seed"], task["size"], task["config"]], sort_keys=True)
        if key not in self._datasets:
            self._datasets[key] = create(task, field="data")
        dataset = self._datasets[key]
        return float(dataset.score_answer(extract_answer(text), entry=dataset[task["index"]]))
