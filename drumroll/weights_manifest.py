"""manifest.json of a weight version: what was published, bit for bit.

On disk it is protobuf's JSON mapping of `WeightManifest` with the field names of the proto. Parsing refuses whatever it
does not know: unknown fields and kinds, names that are not plain basenames, tensors outside of the listed files.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from drumroll_proto.v1 import weights_pb2
from google.protobuf import json_format

from drumroll.errors import CorruptError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 256 << 20

_BASENAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@ -]{0,250}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor and where it is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Safetensors' name, such as BF16."""
    file: str
    offset: int
    """First byte inside the file."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the version's directory."""

    name: str
    size: int
    """In bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class LogitProbe:
    """Token ids whose log-probabilities a replica must reproduce before it attests the version."""

    token_ids: tuple[int, ...]
    expected_logprobs: tuple[float, ...]
    """[i] is that of token_ids[i + 1] given the ones before it; rounded to float32 on disk."""
    tolerance: float
    """Largest absolute difference allowed."""

    def worst_difference(self, logprobs: Sequence[float]) -> float:
        """Largest absolute difference to `logprobs`; infinite where the lengths differ or a value is not a number."""
        if len(logprobs) != len(self.expected_logprobs):
            return float("inf")
        differences = [abs(a - b) for a, b in zip(logprobs, self.expected_logprobs, strict=True)]
        return max((d if d == d else float("inf") for d in differences), default=0.0)

    def accepts(self, logprobs: Sequence[float]) -> bool:
        """Whether `logprobs` are the expected ones within the tolerance."""
        return self.worst_difference(logprobs) <= self.tolerance


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """All of manifest.json. Only whole weights (kind full) are published today."""

    version: int
    step: int
    """Optimizer steps done on this lineage."""
    lineage: int
    job_uid: str
    tensors: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]
    weights_digest: str
    """SHA-256 over the tensors' bytes in name order: independent of how they are cut into files."""
    tokenizer_digest: str = ""
    config_digest: str = ""
    locations: tuple[str, ...] = ()
    probe: LogitProbe | None = None

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """The bytes of manifest.json; equal manifests have equal bytes."""
        return (
            json_format.MessageToJson(
                _to_proto(self),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                sort_keys=True,
                indent=1,
            )
            + "\n"
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "WeightManifest":
        """Parse and check manifest.json.

        Raises:
            CorruptError: it is not a manifest that this release can use.
        """
        try:
            if len(data) > MAX_MANIFEST_BYTES:
                raise ValueError(f"{len(data)} bytes are too many")
            message = json_format.Parse(data.decode(), weights_pb2.WeightManifest())
            if message.schema_version != SCHEMA_VERSION:
                raise ValueError(f"schema_version {message.schema_version}, expected {SCHEMA_VERSION}")
            if message.kind != weights_pb2.WEIGHT_KIND_FULL or message.HasField("base"):
                raise ValueError("only WEIGHT_KIND_FULL without a base can be loaded")
            manifest = _from_proto(message)
            _check(manifest)
        except (ValueError, json_format.ParseError) as error:
            raise CorruptError(f"{MANIFEST} is refused: {error}") from error
        return manifest


def is_complete_json(data: bytes) -> bool:
    """Whether `data` is a whole JSON document, as against one that is still being written."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def check_basename(name: str) -> None:
    """Raises ValueError unless `name` is a plain file name, and not the manifest's own."""
    if not _BASENAME.match(name) or name.endswith((" ", ".")) or name == MANIFEST:
        raise ValueError(f"{name!r} is not a plain file name")


def _check(manifest: WeightManifest) -> None:
    for file in manifest.files:
        check_basename(file.name)
        if not _SHA256.match(file.sha256):
            raise ValueError(f"{file.name} has no SHA-256")
    sizes = {file.name: file.size for file in manifest.files}
    if len(sizes) != len(manifest.files):
        raise ValueError("a file is listed twice")
    if len({tensor.name for tensor in manifest.tensors}) != len(manifest.tensors):
        raise ValueError("a tensor is listed twice")
    for tensor in manifest.tensors:
        if tensor.offset > sizes.get(tensor.file, -1):
            raise ValueError(f"tensor {tensor.name!r} is not inside of a listed file ({tensor.file!r})")
    if not _SHA256.match(manifest.weights_digest):
        raise ValueError("weights_digest is no SHA-256")
    probe = manifest.probe
    if probe is not None and len(probe.expected_logprobs) != max(0, len(probe.token_ids) - 1):
        raise ValueError("the probe needs one log-probability fewer than tokens")


def _to_proto(manifest: WeightManifest) -> weights_pb2.WeightManifest:
    message = weights_pb2.WeightManifest(
        schema_version=SCHEMA_VERSION,
        version=manifest.version,
        step=manifest.step,
        lineage=manifest.lineage,
        kind=weights_pb2.WEIGHT_KIND_FULL,
        tokenizer_digest=manifest.tokenizer_digest,
        config_digest=manifest.config_digest,
        locations=manifest.locations,
        weights_digest=manifest.weights_digest,
        job_uid=manifest.job_uid,
    )
    for tensor in manifest.tensors:
        message.tensors.add(
            name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, file=tensor.file, offset=tensor.offset
        )
    for file in manifest.files:
        message.files.add(name=file.name, size=file.size, sha256=file.sha256)
    if manifest.probe is not None:
        message.probe.token_ids.extend(manifest.probe.token_ids)
        message.probe.expected_logprobs.extend(manifest.probe.expected_logprobs)
        message.probe.tolerance = manifest.probe.tolerance
    return message


def _from_proto(message: weights_pb2.WeightManifest) -> WeightManifest:
    probe = message.probe
    return WeightManifest(
        version=message.version,
        step=message.step,
        lineage=message.lineage,
        job_uid=message.job_uid,
        tensors=tuple(TensorEntry(t.name, tuple(t.shape), t.dtype, t.file, t.offset) for t in message.tensors),
        files=tuple(FileEntry(f.name, f.size, f.sha256) for f in message.files),
        weights_digest=message.weights_digest,
        tokenizer_digest=message.tokenizer_digest,
        config_digest=message.config_digest,
        locations=tuple(message.locations),
        probe=LogitProbe(tuple(probe.token_ids), tuple(probe.expected_logprobs), probe.tolerance)
        if message.HasField("probe")
        else None,
    )
