"""What is known to be wrong before a process starts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_cli.local import preflight
from drumroll_cli.local.preflight import GIB, Needs, context_length, needs, require_disk, require_memory, require_model
from safetensors.numpy import save_file

from drumroll.api.loading import parse_jobs
from drumroll.api.spec import RLJobSpec
from drumroll.errors import JobError, UserError


def spec_of(**changes: Any) -> RLJobSpec:
    spec = {"model": {"path": "m", "dtype": "float32"}, "data": {"train": {"path": "t"}}, "reward": {"type": "exact"}}
    job = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"}, "spec": spec | changes}
    loaded = parse_jobs(json.dumps(job), "test")
    assert not loaded.problems, loaded.problems
    return loaded.jobs[0].job.spec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    return tmp_path


def test_parameters_are_counted_from_headers(model: Path) -> None:
    assert require_model(spec_of(), model) == 17


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"spec.model.path: 'm' is no directory \(.*gone\): give one with config.json"):
        require_model(spec_of(), tmp_path / "gone")
    with pytest.raises(JobError, match=r"spec.model.path: 'm': config.json cannot be read"):
        require_model(spec_of(), tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(JobError, match=r"spec.model.path: 'm': config.json cannot be read"):
        require_model(spec_of(), tmp_path)


def test_damaged_weights_are_named(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(JobError, match=r"spec.model.path: 'm': .*model.safetensors"):
        require_model(spec_of(), model)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 77}}, 77),
        ({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 2048),
        ({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 512),
        ({"max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 512),
        ({}, None),
    ],
)
def test_the_context_is_read_from_the_models_config(config: dict[str, Any], limit: int | None) -> None:
    assert context_length(config) == limit


def test_samples_over_the_models_context_are_refused(model: Path) -> None:
    spec = spec_of(data={"train": {"path": "t"}, "maxPromptTokens": 4000, "maxResponseTokens": 97})
    with pytest.raises(JobError, match="are 4097 tokens, over the model's context of 4096"):
        require_model(spec, model)


def test_needs_grow_with_the_model_and_the_kl_term() -> None:
    small, large = needs(spec_of(), 1_000_000), needs(spec_of(), 1_000_000_000)
    assert large.trainer - small.trainer == 16 * 999_000_000
    assert large.rollout - small.rollout == 4 * 999_000_000
    with_reference = needs(spec_of(algorithm={"klCoef": 0.1}), 1_000_000)
    assert with_reference.trainer - small.trainer == 4_000_000
    replayed = needs(spec_of(rollout={"engine": {"type": "replay"}}), 1_000_000_000)
    assert replayed.rollout == GIB // 4


def test_too_little_memory_says_what_each_needs() -> None:
    need = Needs(rollout=3 * GIB, trainer=5 * GIB, shared=GIB, disk=0)
    spec = spec_of(rollout={"replicas": 2}, trainer={"processesPerReplica": 3})
    require_memory(spec, need, 22 * GIB)
    with pytest.raises(UserError) as caught:
        require_memory(spec, need, 22 * GIB - 1)
    assert str(caught.value).startswith(
        "not enough memory: the job needs about 22.0 GiB (2 replicas of 3.0 GiB, 3 trainer processes of 5.0 GiB, "
        "1.0 GiB for the rest); 22.0 GiB are free. Lower spec.rollout.replicas"
    )


def test_too_little_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 2 * GIB)
    require_disk(Needs(0, 0, 0, disk=2 * GIB), tmp_path)
    with pytest.raises(UserError, match=rf"about 3.0 GiB, {tmp_path} has 2.0 GiB free. Lower spec.weights.keep"):
        require_disk(Needs(0, 0, 0, disk=3 * GIB), tmp_path)


def test_a_full_disk_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.full_disk(tmp_path) is None
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 100)
    assert preflight.full_disk(tmp_path) == (
        f"no space is left on the disk of {tmp_path}: free some, then go on with drumroll run --resume {tmp_path}"
    )


def test_a_containers_limit_counts_as_the_machines_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_CGROUP", tmp_path)
    whole = preflight.available_memory()
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert preflight.available_memory() == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert preflight.available_memory() == pytest.approx(whole, rel=0.5)


def test_secrets_that_the_shell_lacks_are_named() -> None:
    assert preflight.missing_secrets({"A": "A", "B": "B"}, {"B": "x"}) == ["A"]
