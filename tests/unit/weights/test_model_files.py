"""Which files make up a model: the index says so, and headers are checked against it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from drumroll.errors import CorruptError, UserError
from drumroll.model_files import copy_companions, model_files
from drumroll.safetensors_header import read_header

CASES = Path(__file__).parent


def test_w2_a_missing_shard_is_named(tmp_path):
    """Case W2, first half."""
    shutil.copy(CASES / "W2_index_missing_shard.json", tmp_path / "model.safetensors.index.json")
    save_file({"model.a.weight": np.zeros(2, np.float32)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors, which is missing"):
        model_files(tmp_path)


def test_w2_an_old_shard_that_the_index_does_not_name_is_not_read(tmp_path, write_weights, tensors):
    """Case W2, second half."""
    write_weights(tmp_path, tensors, shards=2)
    save_file(tensors, tmp_path / "model-00003-of-00003.safetensors")
    save_file(tensors, tmp_path / "model.safetensors")
    assert model_files(tmp_path) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_an_index_that_puts_a_tensor_into_the_wrong_shard_is_refused(tmp_path, write_weights, tensors):
    write_weights(tmp_path, tensors, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.a.weight"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"model\.a\.weight"):
        model_files(tmp_path)


@pytest.mark.parametrize("tensor", ["model.a.weight", "model.extra"])
def test_a_tensor_that_only_one_side_knows_is_named(tmp_path, write_weights, tensors, tensor):
    write_weights(tmp_path, tensors, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    if document["weight_map"].pop(tensor, None) is None:
        document["weight_map"][tensor] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(UserError, match=tensor.replace(".", r"\.")):
        model_files(tmp_path)


@pytest.mark.parametrize(
    "index",
    ['{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": {}}', "[]", "{", '{"weight_map": {"a": "a.bin"}}'],
)
def test_an_index_that_reaches_outside_or_says_nothing_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="cannot be read"):
        model_files(tmp_path)


def test_a_directory_with_pickles_only_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="only safetensors"):
        model_files(tmp_path)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_header_that_was_tampered_with_never_points_outside_of_its_file(tmp_path, tensors, data):
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, min(len(content), 300) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) - 20, len(content))) :]
    path.write_bytes(content)
    try:
        found = read_header(path)
    except CorruptError:
        return
    assert all(tensor.offset > 0 and tensor.offset + tensor.size <= len(content) for tensor in found)


def test_companions_are_copied_and_config_says_the_published_dtype(tmp_path):
    """Case W8: what config.json says is what the file holds."""
    source, target = tmp_path / "model", tmp_path / "staging"
    source.mkdir()
    target.mkdir()
    (source / "config.json").write_text('{"torch_dtype": "float32", "text_config": {"dtype": "float32"}}')
    (source / "tokenizer.json").write_text("{}")
    (source / "modeling_evil.py").write_text("raise SystemExit")
    (source / "model.safetensors").write_bytes(b"")
    assert copy_companions(source, target, dtype="bfloat16") == ["config.json", "tokenizer.json"]
    assert json.loads((target / "config.json").read_text()) == {
        "dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16"},
    }
    assert copy_companions(source, target, dtype="bfloat16") == []
