"""The weight store against a real directory: what verifies is what was published, whatever happens to its writer."""

import contextlib
import errno
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumroll.errors import CorruptError, TemporaryError, VolumeFull, WeightsNotVisible
from drumroll.weights import WeightStore
from drumroll.weights_manifest import LogitProbe, WeightManifest

OPERATIONS = 8
"""More than a publication of two files takes: every one of them is a place to die."""


class Killed(BaseException):
    """The writer's process is gone: nothing cleans up after it."""


def dying_at(count: int, error: BaseException):
    """A hook that raises before the count-th change of the volume."""
    left = [count]

    def before(operation: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error

    return before


def test_a_published_version_verifies_and_says_what_is_in_it(store, publish, tensors):
    probe = LogitProbe((1, 5, 9), (-0.5, -1.25), 0.001953125)
    published = publish(store, 42, probe=probe, tokenizer_digest="t" * 64, locations=("file:///x",))
    manifest = store.verify(42, published.manifest_sha256)
    assert (manifest.version, manifest.step, manifest.lineage, manifest.job_uid) == (42, 42, 0, "uid-1")
    assert published.path.name == "weight_v000042"
    assert {t.name: (t.shape, t.dtype) for t in manifest.tensors} == {
        "model.a.weight": ((2, 3), "F32"),
        "model.b.weight": ((4,), "F16"),
        "model.steps": ((1,), "I64"),
    }
    raw = (published.path / "model.safetensors").read_bytes()
    for tensor in manifest.tensors:
        content = tensors[tensor.name].tobytes()
        assert raw[tensor.offset : tensor.offset + len(content)] == content
    assert manifest.probe == probe
    assert manifest.config_digest == {f.name: f.sha256 for f in manifest.files}["config.json"]
    assert (store.root / "LATEST").read_text() == "weight_v000042\n"


def test_the_manifest_on_disk_uses_the_protocols_field_names(store, publish):
    document = json.loads((publish(store).path / "manifest.json").read_text())
    assert document["kind"] == "WEIGHT_KIND_FULL"
    assert {"schema_version", "weights_digest", "job_uid", "tokenizer_digest"} <= document.keys()


def test_the_weights_digest_does_not_depend_on_sharding(store, publish):
    assert publish(store, 0).weights_digest == publish(store, 1, shards=2).weights_digest


def test_w8_the_manifest_tells_the_dtype_and_size_of_what_lies_there(store, publish):
    """Case W8, the store's half."""
    published = publish(store, 1, {"w": np.zeros((1000, 10), dtype=np.float16)})
    manifest = store.verify(1, published.manifest_sha256)
    assert [t.dtype for t in manifest.tensors] == ["F16"]
    assert manifest.num_bytes == pytest.approx(20_000, rel=0.01)


def test_files_are_readable_by_replicas_that_run_as_another_user(store, publish):
    published = publish(store)
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in published.path.iterdir())


def test_what_is_there_already_wins_when_it_is_equal(store, publish):
    first = publish(store)
    again = publish(store, shards=2)
    assert (again.existed, again.diverged) == (True, False)
    assert again.manifest_sha256 == first.manifest_sha256


def test_what_is_there_already_wins_and_is_reported_when_it_differs(store, publish, tensors):
    first = publish(store)
    again = publish(store, 3, tensors | {"model.b.weight": np.zeros((4,), dtype=np.float16)})
    assert (again.existed, again.diverged) == (True, True)
    assert again.weights_digest == first.weights_digest
    assert not list(store.root.glob(".stage-*"))


@pytest.mark.parametrize("died_after", range(OPERATIONS))
def test_a_writer_that_dies_anywhere_leaves_nothing_that_looks_complete(tmp_path, publish, died_after):
    root = tmp_path / "weights"
    with contextlib.suppress(Killed):
        publish(WeightStore(root, "uid-1", before=dying_at(died_after, Killed())))
    store = WeightStore(root, "uid-1")
    found = store.find(3)
    assert (found is not None) == (3 in store.versions())
    again = publish(store)
    assert again.existed == (found is not None)
    assert store.verify(3, again.manifest_sha256).weights_digest == again.weights_digest
    store.sweep()
    assert sorted(path.name for path in store.root.iterdir()) == [".lock", "LATEST", "weight_v000003"]


@pytest.mark.parametrize("died_after", range(2))
def test_a_version_whose_deletion_was_cut_off_is_not_there(tmp_path, publish, died_after):
    store = WeightStore(tmp_path / "weights", "uid-1")
    published = publish(store)
    with contextlib.suppress(Killed):
        WeightStore(store.root, "uid-1", before=dying_at(died_after + 1, Killed())).delete(3)
    assert store.find(3) is None
    with pytest.raises(WeightsNotVisible):
        store.verify(3, published.manifest_sha256)
    store.delete(3)
    assert store.versions() == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_a_manifest_that_is_cut_off_anywhere_is_not_a_version_yet(store, publish, share):
    published = publish(store)
    manifest = published.path / "manifest.json"
    whole = manifest.read_bytes()
    cut = whole[: int(len(whole.rstrip()) * share)]
    manifest.write_bytes(cut)
    try:
        with pytest.raises(WeightsNotVisible):
            store.verify(3, published.manifest_sha256)
        assert store.find(3) is None
    finally:
        manifest.write_bytes(whole)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_byte_of_any_file_verifies(store, publish, data):
    published = publish(store)
    path = data.draw(st.sampled_from(sorted(published.path.iterdir())))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        with pytest.raises((CorruptError, WeightsNotVisible)):
            store.verify(3, published.manifest_sha256)
    finally:
        path.write_bytes(original)
    store.verify(3, published.manifest_sha256)


def _link(directory: Path) -> None:
    (directory / "tokenizer.json").symlink_to("/etc/hostname")


def _linked_file(directory: Path) -> None:
    shutil.move(directory / "config.json", directory.parent / "elsewhere.json")
    (directory / "config.json").symlink_to(directory.parent / "elsewhere.json")


def _folder(directory: Path) -> None:
    (directory / "more").mkdir()


def _stray_shard(directory: Path) -> None:
    shutil.copy(directory / "model.safetensors", directory / "model-00003-of-00003.safetensors")


def _longer(directory: Path) -> None:
    with (directory / "config.json").open("ab") as file:
        file.write(b" ")


@pytest.mark.parametrize("spoil", [_link, _linked_file, _folder, _stray_shard, _longer])
def test_verification_refuses_what_was_not_published(store, publish, spoil):
    """Case W2, second half: a shard that the manifest does not name is never read."""
    published = publish(store)
    spoil(published.path)
    with pytest.raises(CorruptError):
        store.verify(3, published.manifest_sha256)


def test_a_file_that_is_not_there_yet_is_named_and_may_be_waited_for(store, publish):
    published = publish(store)
    (published.path / "model.safetensors").unlink()
    with pytest.raises(TemporaryError, match=r"model\.safetensors is not there yet: missing"):
        store.verify(3, published.manifest_sha256)


def test_a_version_of_another_job_is_refused(store, publish):
    published = publish(store)
    with pytest.raises(CorruptError, match="of job uid-1"):
        WeightStore(store.root, "uid-2").verify(3, published.manifest_sha256)


def test_another_manifest_than_the_announced_one_is_refused(store, publish):
    publish(store)
    with pytest.raises(CorruptError, match="SHA-256"):
        store.verify(3, "0" * 64)


def test_a_linked_version_directory_is_refused(store, publish):
    published = publish(store)
    published.path.rename(store.root / "moved")
    published.path.symlink_to(store.root / "moved")
    with pytest.raises(CorruptError, match="link"):
        store.verify(3, published.manifest_sha256)


def test_a_stray_shard_is_not_published(store, write_weights, tensors):
    staging = store.stage(3)
    write_weights(staging, tensors, shards=2)
    shutil.copy(staging / "model-00001-of-00002.safetensors", staging / "model-00003-of-00003.safetensors")
    with pytest.raises(CorruptError, match="model-00003-of-00003"):
        store.publish(staging, version=3, step=3, lineage=0)


@pytest.mark.parametrize("full_at", ["sync model.safetensors", "rename", "sync root", "write manifest"])
def test_a_full_volume_is_said_and_leaves_no_version(tmp_path, publish, full_at):
    def before(operation: str) -> None:
        if operation == full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(VolumeFull, match=r"is full .* lower weights\.keep"):
        publish(WeightStore(tmp_path / "weights", "uid-1", before=before))
    store = WeightStore(tmp_path / "weights", "uid-1")
    assert store.versions() == []
    assert publish(store).existed is False


def test_a_version_that_is_complete_survives_a_volume_too_full_for_latest(tmp_path, publish):
    def before(operation: str) -> None:
        if operation == "write LATEST":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = WeightStore(tmp_path / "weights", "uid-1", before=before)
    store.verify(3, publish(store).manifest_sha256)


def test_a_full_volume_at_the_manifest_lets_the_same_staging_be_published_later(
    tmp_path, tensors, write_weights, monkeypatch
):
    store = WeightStore(tmp_path / "weights", "uid-1")
    staging = store.stage(3)
    write_weights(staging, tensors)

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("drumroll.weights.write_new", full)
        with pytest.raises(VolumeFull):
            store.publish(staging, version=3, step=3, lineage=0)
    assert store.versions() == []
    assert store.publish(staging, version=3, step=3, lineage=0).existed is False


def test_of_two_writers_at_once_one_wins_and_both_learn_of_the_same_version(store, publish, tensors):
    """The second may be a trainer that was replaced, with weights of its own."""
    for version in range(8):
        barrier = threading.Barrier(2)
        results = [None, None]

        def write(place, version=version, barrier=barrier, results=results):
            own = WeightStore(store.root, "uid-1")
            barrier.wait()
            content = tensors if place == 0 else tensors | {"model.steps": np.array([8], dtype=np.int64)}
            results[place] = publish(own, version, content)

        threads = [threading.Thread(target=write, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results[0].manifest_sha256 == results[1].manifest_sha256
        assert sorted((r.existed, r.diverged) for r in results) == [(False, False), (True, True)]
        store.verify(version, results[0].manifest_sha256)


def test_versions_are_listed_in_order_and_a_deleted_one_is_gone(store, publish):
    for version in (10, 2, 1_000_000):
        publish(store, version)
    assert store.versions() == [2, 10, 1_000_000]
    store.delete(10)
    store.delete(10)
    assert store.versions() == [2, 1_000_000]


names = st.text("abcdef.012", min_size=1, max_size=12).filter(lambda name: not name.startswith("."))
arrays = st.builds(
    lambda shape, dtype, value: np.full(shape, value, dtype=dtype),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.sampled_from([np.float32, np.float16, np.int64, np.uint8]),
    st.integers(0, 200),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(names, arrays, min_size=2, max_size=6), shards=st.integers(1, 2))
def test_what_verifies_is_what_was_published(store, publish, content, shards):
    store.delete(3)
    published = publish(store, 3, content, shards=shards)
    manifest = store.verify(3, published.manifest_sha256)
    assert {t.name for t in manifest.tensors} == content.keys()
    for tensor in manifest.tensors:
        data = (published.path / tensor.file).read_bytes()
        expected = content[tensor.name]
        assert tensor.shape == expected.shape
        assert data[tensor.offset : tensor.offset + expected.nbytes] == expected.tobytes()
    assert WeightManifest.from_json(manifest.to_json()) == manifest
