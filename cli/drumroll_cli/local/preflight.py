"""What is checked before any process starts: model, memory, disk. Data and reward have checks of their own."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from drumroll.api.quantity import quantity_bytes
from drumroll.api.spec import RLJobSpec
from drumroll.errors import CorruptError, JobError, UserError
from drumroll.model_files import model_files
from drumroll.safetensors_header import read_header

GIB = 1 << 30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PROCESS_BYTES = {"vllm": int(1.3 * GIB), "replay": GIB // 4, "trainer": GIB, "scheduler": GIB // 4}
"""What a process of ours takes beside weights, KV cache and optimizer state; measured, rounded up."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of memory per process, and of disk."""

    rollout: int
    trainer: int
    shared: int
    disk: int


def require_model(spec: RLJobSpec, model_dir: Path) -> int:
    """Parameters of the starting model.

    Raises:
        JobError: the directory is missing or holds no loadable model; the message says what belongs there.
    """
    field = f"spec.model.path: {spec.model.path!r}"
    if not model_dir.is_dir():
        raise JobError(f"{field} is no directory ({model_dir}): give one with config.json, safetensors and a tokenizer")
    try:
        json.loads((model_dir / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise JobError(f"{field}: config.json cannot be read: {error}") from error
    try:
        headers = [read_header(model_dir / name) for name in model_files(model_dir)]
    except (UserError, CorruptError) as error:
        raise JobError(f"{field}: {error}") from error
    return sum(prod(part.shape) for header in headers for part in header)


def needs(spec: RLJobSpec, num_parameters: int) -> Needs:
    """An estimate from below: a job that does not fit by it cannot run."""
    weights = num_parameters * DTYPE_BYTES[spec.model.dtype]
    engine = spec.rollout.engine
    kv = quantity_bytes(engine.kv_cache_memory) if engine.type == "vllm" else 0
    loaded = weights if engine.type == "vllm" else 0
    # Masters, gradients and two moments in float32, and a reference model for the KL term.
    trainer = num_parameters * (16 + (4 if spec.algorithm.kl_coef > 0 else 0)) + PROCESS_BYTES["trainer"]
    stream = 0 if spec.stream.url else quantity_bytes(spec.stream.embedded.max_bytes) // 4
    checkpoints = (spec.trainer.checkpoint.keep + 1) * num_parameters * 12
    return Needs(
        rollout=loaded + kv + PROCESS_BYTES[engine.type],
        trainer=trainer,
        shared=stream + PROCESS_BYTES["scheduler"],
        disk=(spec.weights.keep + 2) * weights + checkpoints,
    )


def require_memory(spec: RLJobSpec, need: Needs, available: int) -> None:
    """Raises:
    UserError: the job's processes do not fit, with what each needs.
    """
    replicas, trainers = spec.rollout.replicas, spec.trainer.replicas * (spec.trainer.processes_per_replica or 1)
    total = replicas * need.rollout + trainers * need.trainer + need.shared
    if total > available:
        raise UserError(
            f"not enough memory: the job needs about {_gib(total)} ({replicas} replicas of {_gib(need.rollout)}, "
            f"{trainers} trainer processes of {_gib(need.trainer)}, {_gib(need.shared)} for the rest); "
            f"{_gib(available)} are free. Lower spec.rollout.replicas or spec.rollout.engine.kvCacheMemory"
        )


def require_disk(
    need: Needs, folder: Path, *, usage: Callable[[Path], "shutil._ntuple_diskusage"] = shutil.disk_usage
) -> None:
    """Raises:
    UserError: weights and checkpoints will not fit.
    """
    free = usage(folder).free
    if need.disk > free:
        raise UserError(
            f"not enough disk: weights and checkpoints need about {_gib(need.disk)}, {folder} has {_gib(free)} free. "
            "Lower spec.weights.keep or spec.trainer.checkpoint.keep, or give another --run-dir"
        )


def missing_secrets(references: Mapping[str, str], shell: Mapping[str, str]) -> list[str]:
    """Names of secret variables that the shell does not have."""
    return sorted(name for name, source in references.items() if source not in shell)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
