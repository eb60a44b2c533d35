"""What is checked before any process starts: model, memory, disk. Data and reward have checks of their own."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import psutil

from drumroll.api.quantity import quantity_bytes
from drumroll.api.spec import RLJobSpec
from drumroll.errors import CorruptError, JobError, UserError
from drumroll.model_files import model_files
from drumroll.safetensors_header import read_header

GIB = 1 << 30
_FULL_BYTES = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")
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
        JobError: the directory is missing or holds no loadable model, or the longest sample does not fit into its
            context; the message says what belongs there.
    """
    field = f"spec.model.path: {spec.model.path!r}"
    if not model_dir.is_dir():
        raise JobError(f"{field} is no directory ({model_dir}): give one with config.json, safetensors and a tokenizer")
    try:
        config = json.loads((model_dir / "config.json").read_text())
        limit = context_length(config)
    except (OSError, ValueError, AttributeError) as error:
        raise JobError(f"{field}: config.json cannot be read: {error}") from error
    wanted = spec.data.max_prompt_tokens + spec.data.max_response_tokens
    if limit is not None and wanted > limit:
        raise JobError(
            f"spec.data: maxPromptTokens {spec.data.max_prompt_tokens} + maxResponseTokens "
            f"{spec.data.max_response_tokens} are {wanted} tokens, over the model's context of {limit} "
            f"(max_position_embeddings in {model_dir / 'config.json'}): lower one of them, or take another model"
        )
    try:
        headers = [read_header(model_dir / name) for name in model_files(model_dir)]
    except (UserError, CorruptError) as error:
        raise JobError(f"{field}: {error}") from error
    return sum(prod(part.shape) for header in headers for part in header)


def context_length(config: Mapping[str, Any]) -> int | None:
    """Positions that a model knows, by its config.json; None where it does not say."""
    config = config.get("text_config") or config
    known = config.get("max_position_embeddings") or config.get("n_positions")
    if not isinstance(known, int) or known <= 0:
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    # With these the configured length is the one before stretching; others state it after.
    return int(known * float(scaling.get("factor", 1.0))) if kind in ("linear", "dynamic", "yarn") else known


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


def available_memory() -> int:
    """Bytes that new processes may take: what the machine has, within the limit of this container."""
    available = psutil.virtual_memory().available
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return available if limit == "max" else min(available, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return int(available)


def free_disk(folder: Path) -> int:
    """Bytes that may be written into a directory."""
    return shutil.disk_usage(folder).free


def full_disk(folder: Path) -> str | None:
    """A sentence where nothing can be written any more: then even the logs cannot say so."""
    if free_disk(folder) >= _FULL_BYTES:
        return None
    return f"no space is left on the disk of {folder}: free some, then go on with drumroll run --resume {folder}"


def require_disk(need: Needs, folder: Path) -> None:
    """Raises:
    UserError: weights and checkpoints will not fit.
    """
    free = free_disk(folder)
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
