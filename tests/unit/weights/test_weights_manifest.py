"""manifest.json is untrusted: whatever it says is checked before a file is opened."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import CorruptError
from drumroll.weights_manifest import FileEntry, LogitProbe, TensorEntry, WeightManifest

SHA = "a" * 64
MANIFEST = WeightManifest(
    version=7,
    step=7,
    lineage=1,
    job_uid="uid",
    tensors=(TensorEntry("w", (2, 3), "BF16", "model.safetensors", 80),),
    files=(FileEntry("config.json", 2, SHA), FileEntry("model.safetensors", 92, SHA)),
    weights_digest=SHA,
    probe=LogitProbe((1, 2), (-0.5,), 0.25),
)


def test_a_manifest_comes_back_as_it_was():
    assert WeightManifest.from_json(MANIFEST.to_json()) == MANIFEST


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/etc/passwd", "a/b", "..", ".hidden", "manifest.json", "", "a\x00b", "a\n", "a\\b"],
)
def test_a_name_that_is_no_plain_file_name_is_refused(name):
    document = json.loads(MANIFEST.to_json())
    document["files"][0]["name"] = name
    with pytest.raises(CorruptError):
        WeightManifest.from_json(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 2),
        ("kind", "WEIGHT_KIND_DELTA"),
        ("kind", "WEIGHT_KIND_NEW"),
        ("base", {"version": "1", "manifest_sha256": SHA}),
        ("weights_digest", "short"),
        ("unheard_of", 1),
        ("probe", {"token_ids": [1, 2], "expected_logprobs": [], "tolerance": 1.0}),
        ("files", [{"name": "model.safetensors", "size": "92", "sha256": SHA}] * 2),
        ("files", [{"name": "config.json", "size": "2", "sha256": SHA}]),
        ("version", -1),
    ],
)
def test_what_this_release_cannot_use_is_refused(field, value):
    document = json.loads(MANIFEST.to_json()) | {field: value}
    with pytest.raises(CorruptError):
        WeightManifest.from_json(json.dumps(document).encode())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_manifest_are_refused(data):
    with pytest.raises(CorruptError):
        WeightManifest.from_json(data)


@pytest.mark.parametrize("logprobs", [[], [-0.5, -0.5], [float("nan")], [-0.8], [float("-inf")]])
def test_a_probe_refuses_other_values(logprobs):
    assert not LogitProbe((1, 2), (-0.5,), 0.25).accepts(logprobs)


def test_a_probe_accepts_what_is_within_its_tolerance():
    assert LogitProbe((1, 2), (-0.5,), 0.25).accepts([-0.7])
