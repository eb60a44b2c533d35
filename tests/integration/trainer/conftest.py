"""Trainers on tiny models, in this process."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from drumroll_trainer.learner.crew import Crew
from drumroll_trainer.learner.fsdp import World
from drumroll_trainer.learner.learner import Learner
from drumroll_trainer.learner.tiny_model import make_tiny_model

from drumroll.job import ResolvedJob

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with untied embeddings."""
    return make_tiny_model(tmp_path_factory.mktemp("llama") / "model", seed=1, hidden=32, heads=2)


@pytest.fixture
def crew_of() -> Callable[[ResolvedJob], Crew]:
    """A new process's learner, so to speak: it knows nothing but the job."""

    def make(job: ResolvedJob) -> Crew:
        return Crew(Learner(job, World(0, 1, torch.device("cpu"))), job)

    return make
