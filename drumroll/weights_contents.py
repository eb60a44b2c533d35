"""What lies in a version's directory, against what its manifest says: described once, checked by every reader."""

import hashlib
from pathlib import Path

from drumroll.errors import CorruptError, WeightsNotVisible
from drumroll.model_files import tensors_by_file
from drumroll.safetensors_header import iter_bytes
from drumroll.weights_files import regular_files, sha256_file
from drumroll.weights_manifest import MANIFEST, FileEntry, TensorEntry, WeightManifest, check_basename


def describe(directory: Path, *, version: int, step: int, lineage: int, job_uid: str) -> WeightManifest:
    """The manifest of the files in `directory`; its config digest is that of config.json.

    Raises:
        CorruptError: an entry is no plain regular file, or index and shards disagree.
    """
    sizes = regular_files(directory)
    for name in sizes:
        try:
            check_basename(name)
        except ValueError as error:
            raise CorruptError(f"cannot publish: {error}") from error
    by_file = tensors_by_file(directory)
    stray = sorted(name for name in sizes if name.endswith(".safetensors") and name not in by_file)
    if stray:
        raise CorruptError(f"cannot publish: {', '.join(stray)} does not belong to the model's index")
    tensors = sorted(((t, file) for file, found in by_file.items() for t in found), key=lambda pair: pair[0].name)
    digest = hashlib.sha256()
    for tensor, file in tensors:
        for chunk in iter_bytes(directory / file, tensor):
            digest.update(chunk)
    files = tuple(FileEntry(name, size, sha256_file(directory / name)) for name, size in sizes.items())
    return WeightManifest(
        version=version,
        step=step,
        lineage=lineage,
        job_uid=job_uid,
        tensors=tuple(TensorEntry(t.name, t.shape, t.dtype, file, t.offset) for t, file in tensors),
        files=files,
        weights_digest=digest.hexdigest(),
        config_digest=next((file.sha256 for file in files if file.name == "config.json"), ""),
    )


def check_files(directory: Path, manifest: WeightManifest) -> None:
    """Exactly the listed files are there, with their sizes and sums.

    Raises:
        WeightsNotVisible: a file is missing or still short.
        CorruptError: a file is not what was published, or was not published at all.
    """
    sizes = regular_files(directory)
    sizes.pop(MANIFEST, None)
    listed = {file.name: file for file in manifest.files}
    for name in sizes:
        if name not in listed:
            raise CorruptError(f"{directory.name}/{name} was not published")
    for name, file in listed.items():
        size = sizes.get(name, -1)
        if size < file.size:
            there = "missing" if size < 0 else f"{size} bytes"
            raise WeightsNotVisible(f"{directory.name}/{name} is not there yet: {there} of {file.size}")
        if size > file.size:
            raise CorruptError(f"{directory.name}/{name} has {size} bytes, published were {file.size}")
        if sha256_file(directory / name) != file.sha256:
            raise CorruptError(f"{directory.name}/{name} has another SHA-256 than was published")


def check_tensors(directory: Path, manifest: WeightManifest) -> None:
    """What a loader would read, by the index and the headers, is what the manifest lists.

    Raises:
        CorruptError: they disagree.
    """
    found = {
        TensorEntry(tensor.name, tensor.shape, tensor.dtype, file, tensor.offset)
        for file, tensors in tensors_by_file(directory).items()
        for tensor in tensors
    }
    if found != set(manifest.tensors):
        names = sorted({tensor.name for tensor in found ^ set(manifest.tensors)})
        raise CorruptError(f"{directory.name}: files and {MANIFEST} disagree about {', '.join(names[:5])}")
