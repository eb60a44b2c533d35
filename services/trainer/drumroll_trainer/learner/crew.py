"""All ranks of the trainer as one learner: rank 0 says what to do, the others do the same.

A command is a name and byte strings, broadcast in host memory. Payloads travel as the bytes that came from the stream;
every rank decodes and packs them by itself, which gives equal batches because packing is deterministic.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drumroll_planner import records as r
from drumroll_proto.v1 import journal_pb2

from drumroll.errors import CorruptError
from drumroll.job import ResolvedJob
from drumroll.samples import Limits
from drumroll_trainer.decisions import from_wire, to_wire
from drumroll_trainer.decoding import decode_step, place_name
from drumroll_trainer.learner.export import weights_digest, write_model
from drumroll_trainer.learner.learner import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """Full tensors on rank 0."""

    tensors: dict[str, torch.Tensor]
    weights_digest: str
    model_dir: Path
    dtype: str

    def write(self, directory: Path) -> None:
        """Write safetensors, config and tokenizer files."""
        write_model(directory, self.tensors, model_dir=self.model_dir, dtype=self.dtype)


class Crew:
    """Rank 0's LearnerPort. Every method tells the other ranks first, then does the same here."""

    def __init__(self, learner: Learner, job: ResolvedJob) -> None:
        self._learner = learner
        self._job = job

    @property
    def vocab_size(self) -> int:
        """Token ids from here on do not exist."""
        return self._learner.vocab_size

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._learner.world.size

    def restore(self, folder: Path | None) -> None:
        """Start anew from the model directory, or from a checkpoint folder."""
        self._tell("restore", str(folder or "").encode())
        self._learner.restore(folder)

    def train(self, decision: r.Decided, payloads: Sequence[bytes]) -> dict[str, float]:
        """Take the decided step on all ranks."""
        self._tell("train", to_wire(decision).SerializeToString(deterministic=True), *payloads)
        return _train(self._learner, self._job, decision, payloads)

    def export(self) -> Export:
        """Gather the weights here."""
        self._tell("export")
        tensors = self._learner.collect()
        spec = self._job.spec
        return Export(tensors, weights_digest(tensors), Path(self._job.layout.model_dir), spec.model.dtype)

    def probe(self, token_ids: Sequence[int]) -> list[float]:
        """Raw log-probabilities of a probe."""
        self._tell("probe", json.dumps(list(token_ids)).encode())
        return self._learner.probe(token_ids)

    def save(self, folder: Path) -> None:
        """Every rank writes its shards."""
        self._tell("save", str(folder).encode())
        self._learner.save(folder)

    def rng_state(self) -> str:
        """Of rank 0; all ranks are seeded alike and draw nothing."""
        return self._learner.rng_state()

    def idle(self) -> None:
        """Keep the other ranks from giving up on rank 0."""
        self._tell("idle")

    def stop(self) -> None:
        """Send the other ranks home."""
        self._tell("stop")

    def _tell(self, name: str, *parts: bytes) -> None:
        if self._learner.world.size > 1:
            _broadcast([name.encode(), *parts])


def follow(learner: Learner, job: ResolvedJob) -> None:
    """What every rank but 0 does until it is sent home."""
    while True:
        name, *parts = _broadcast(None)
        match name.decode():
            case "restore":
                learner.restore(Path(parts[0].decode()) if parts[0] else None)
            case "train":
                decision = from_wire(journal_pb2.Decided.FromString(parts[0]))
                _train(learner, job, decision, parts[1:])
            case "export":
                learner.collect()
            case "probe":
                learner.probe(json.loads(parts[0]))
            case "save":
                learner.save(Path(parts[0].decode()))
            case "idle":
                pass
            case "stop":
                return
            case unknown:
                raise AssertionError(f"rank 0 said {unknown!r}")


def _train(learner: Learner, job: ResolvedJob, decision: r.Decided, payloads: Sequence[bytes]) -> dict[str, float]:
    decoded = decode_step(decision, payloads, Limits.of(job, vocab_size=learner.vocab_size))
    if decoded.faults:
        place, reason = decoded.faults[0]
        raise CorruptError(f"step {decision.step}: sample {place_name(decision, place)} is refused: {reason}")
    return learner.train(decoded.sequences, decision.step)


def _broadcast(parts: Sequence[bytes] | None) -> list[bytes]:
    """Rank 0 gives byte strings, all ranks get them."""
    sizes = [] if parts is None else [len(part) for part in parts]
    counts = torch.tensor([len(sizes)], dtype=torch.int64)
    dist.broadcast(counts, src=0)
    lengths = (
        torch.tensor(sizes, dtype=torch.int64) if parts is not None else torch.zeros(int(counts), dtype=torch.int64)
    )
    dist.broadcast(lengths, src=0)
    total = int(lengths.sum())
    body = torch.zeros(total, dtype=torch.uint8)
    if parts is not None and total:
        body = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    if total:
        dist.broadcast(body, src=0)
    data: Any = body.numpy().tobytes()
    ends = torch.cumsum(lengths, 0).tolist()
    return [data[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
