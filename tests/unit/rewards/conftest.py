"""Scorers over real reward processes, and reward modules beside a job file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drumroll_rollout.rewards import Scorer
from drumroll_rollout.rewards.setup import WorkerSetup

from drumroll.api.spec import RLJobSpec


@pytest.fixture
def make_scorer(tmp_path: Path) -> Iterator[Callable[..., Scorer]]:
    """Makes started scorers: make_scorer("function", function="mine:score", timeout_s=1.0)."""
    made: list[Scorer] = []

    def make(
        type: Any, *, timeout_s: float = 60.0, workers: int = 1, require_stop: bool = False, **setup: Any
    ) -> Scorer:
        setup = {"source_dir": str(tmp_path), "memory_bytes": 2 << 30, **setup}
        scorer = Scorer(
            WorkerSetup(type=type, **setup), workers=workers, timeout_s=timeout_s, require_stop=require_stop
        )
        made.append(scorer)
        scorer.start()
        return scorer

    yield make
    for scorer in made:
        scorer.close()


@pytest.fixture
def write_module(tmp_path: Path) -> Callable[[str], str]:
    """Writes mine.py beside the job file; returns `mine:score`."""

    def write(source: str) -> str:
        (tmp_path / "mine.py").write_text(source)
        return "mine:score"

    return write


@pytest.fixture
def spec() -> Callable[..., RLJobSpec]:
    """Makes a spec with this reward."""

    def make(reward: dict[str, Any], **fields: Any) -> RLJobSpec:
        data = {"train": {"path": "rows.jsonl"}}
        return RLJobSpec.model_validate({"model": {"path": "model"}, "data": data, "reward": reward, **fields})

    return make
