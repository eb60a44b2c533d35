"""Archives of trained steps: the decision and the payloads of its samples, in one file a step.

    samples/step_000017.samples = MAGIC, then length-delimited messages: Decided, and for each sample in the decision's
    order its payload (empty where payloads are not kept), then SHA-256 of all before (32 bytes)

A file is replaced as a whole and synced before the step is trained further. It serves a restarted trainer whose samples
are gone from the stream, the ledger that lost a decision, and `drumroll replay`.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drumroll_planner import records as r
from drumroll_planner.chain import chain_digest
from drumroll_proto.v1 import journal_pb2
from google.protobuf.message import DecodeError

from drumroll.errors import CorruptError
from drumroll.weights_files import saying_when_full, sync
from drumroll_trainer.decisions import from_wire, sample_keys, to_wire

logger = logging.getLogger(__name__)

MAGIC = b"drumroll samples 1\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class ArchivedStep:
    """A step as it was trained."""

    decision: r.Decided
    payloads: tuple[bytes, ...]
    """In the order of the decision's samples; empty where only the decision was kept."""


def archive_path(samples_dir: Path, step: int) -> Path:
    """Where a step's archive is."""
    return samples_dir / f"step_{step:06d}.samples"


def write_step(samples_dir: Path, decision: r.Decided, payloads: Sequence[bytes] | None) -> Path:
    """Write a step's archive, durably, in place of an older one. `payloads`: None keeps the decision alone.

    Raises:
        VolumeFull: no space; an older archive of the step is untouched.
    """
    path = archive_path(samples_dir, decision.step)
    temporary = path.with_name(path.name + ".tmp")
    digest = hashlib.sha256()
    kept = [b""] * len(sample_keys(decision)) if payloads is None else payloads
    with saying_when_full(samples_dir):
        samples_dir.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for part in (MAGIC, *_delimited(to_wire(decision).SerializeToString(deterministic=True), *kept)):
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(samples_dir)
    return path


def read_step(samples_dir: Path, step: int) -> ArchivedStep | None:
    """A step's archive; None where there is none.

    Raises:
        CorruptError: the file is not what was written, or a payload is not the one that its decision names.
    """
    path = archive_path(samples_dir, step)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    body, trailer = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not body.startswith(MAGIC) or hashlib.sha256(body).digest() != trailer:
        raise CorruptError(f"{path.name} is damaged: its SHA-256 is not the one written behind it")
    parts = _split(body[len(MAGIC) :], path.name)
    decision = _decision(parts, path.name)
    payloads = tuple(parts[1:])
    samples = [sample for _, sample in sample_keys(decision)]
    if decision.step != step or len(payloads) != len(samples):
        raise CorruptError(f"{path.name} holds step {decision.step} with {len(payloads)} of {len(samples)} samples")
    for sample, payload in zip(samples, payloads, strict=True):
        if payload and hashlib.sha256(payload).digest() != sample.sha256:
            raise CorruptError(f"{path.name}: the sample of entry {sample.entry_id} is not the one that was decided")
    return ArchivedStep(decision, payloads)


def decisions_from(samples_dir: Path, step: int, chain: str) -> dict[int, r.Decided]:
    """Archived decisions from `step` on, as far as they continue `chain` without a gap."""
    found: dict[int, r.Decided] = {}
    while (decision := _readable(samples_dir, step)) is not None and chain_digest(chain, decision) == decision.chain:
        found[step] = decision
        step, chain = step + 1, decision.chain
    return found


def decisions_before(samples_dir: Path, step: int, *, limit: int = 64) -> list[r.Decided]:
    """Archived decisions of the last steps before `step`, oldest first: what a ledger that lost its end needs."""
    found: list[r.Decided] = []
    while len(found) < limit and (decision := _readable(samples_dir, step - len(found) - 1)) is not None:
        found.append(decision)
    return found[::-1]


def forget_from(samples_dir: Path, step: int) -> None:
    """Remove the archives of `step` and later ones: their decisions are void."""
    for path in samples_dir.glob("step_*.samples"):
        if int(path.stem.removeprefix("step_")) >= step:
            path.unlink(missing_ok=True)


def _readable(samples_dir: Path, step: int) -> r.Decided | None:
    try:
        archived = read_step(samples_dir, step)
    except CorruptError as error:
        logger.warning("%s", error)
        return None
    return archived.decision if archived else None


def _delimited(*parts: bytes) -> list[bytes]:
    return [piece for part in parts for piece in (len(part).to_bytes(_LENGTH_BYTES, "little"), part)]


def _split(body: bytes, name: str) -> list[bytes]:
    parts, place = [], 0
    while place < len(body):
        start = place + _LENGTH_BYTES
        end = start + int.from_bytes(body[place:start], "little")
        if end > len(body):
            raise CorruptError(f"{name} ends inside of a message")
        parts.append(body[start:end])
        place = end
    return parts


def _decision(parts: Sequence[bytes], name: str) -> r.Decided:
    try:
        return from_wire(journal_pb2.Decided.FromString(parts[0]))
    except (IndexError, DecodeError) as error:
        raise CorruptError(f"{name} holds no decision") from error
