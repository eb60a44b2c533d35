"""Weight stores in a real directory, and safetensors written by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from drumroll.weights import WeightStore

Tensors = dict[str, np.ndarray]


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "weights", "uid-1")


@pytest.fixture
def tensors() -> Tensors:
    return {
        "model.a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.b.weight": np.ones((4,), dtype=np.float16),
        "model.steps": np.array([7], dtype=np.int64),
    }


def write(directory: Path, tensors: Tensors, *, shards: int = 1) -> None:
    """Write tensors as one file, or as shards with an index; and a config.json."""
    (directory / "config.json").write_text('{"model_type": "tiny"}')
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return
    names = [f"model-{index + 1:05d}-of-{shards:05d}.safetensors" for index in range(shards)]
    weight_map = {tensor: names[index % shards] for index, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor, file in weight_map.items() if file == name}, directory / name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def write_weights() -> Callable[..., None]:
    return write


@pytest.fixture
def publish(tensors: Tensors) -> Callable[..., object]:
    """Stage and publish the fixture's tensors, or others."""

    def run(store: WeightStore, version: int = 3, content: Tensors | None = None, *, shards: int = 1, **more: object):
        staging = store.stage(version)
        write(staging, tensors if content is None else content, shards=shards)
        return store.publish(staging, version=version, step=version, lineage=0, **more)  # type: ignore[arg-type]

    return run
