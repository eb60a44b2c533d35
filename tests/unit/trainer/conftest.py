"""Tiny models and jobs for the trainer's tests."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with untied embeddings."""
    from drumroll_trainer.learner.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("llama") / "model", seed=1, hidden=32, heads=2)


@pytest.fixture(scope="session")
def gpt2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2: absolute positions, dropout in its configuration, tied embeddings."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2)
    directory = tmp_path_factory.mktemp("gpt2") / "model"
    GPT2LMHeadModel(config).save_pretrained(directory)
    return directory
