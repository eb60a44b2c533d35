"""A policy's weights in the form in which they are published: full tensors, the job's dtype, the model's own names."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from drumroll.model_files import INDEX, SINGLE, copy_companions
from drumroll_trainer.learner.fsdp import full_tensor
from drumroll_trainer.learner.model import PolicyModel

SHARD_BYTES = 5 * 10**9


def collect(policy: PolicyModel, dtype: torch.dtype, *, keep: bool) -> dict[str, torch.Tensor]:
    """Name to tensor on the CPU; a collective call. Only ranks with `keep` get tensors, the others an empty mapping.

    Floating tensors are cast to `dtype`, integer buffers are left as they are. Tied parameters come once.
    """
    model = policy.language_model
    collected: dict[str, torch.Tensor] = {}
    for name, parameter in policy.own_parameters():
        whole = full_tensor(parameter.detach())
        if keep:
            collected[name] = _cast(whole, dtype)
        del whole
    if not keep:
        return {}
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, buffer in model.state_dict().items():
        if name not in known:
            collected[name] = _cast(buffer, dtype)
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    return _original_names(policy, {name: t for name, t in collected.items() if name not in ignored})


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the tensors' bytes in name order: the weight store's digest of a version."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        raw: Any = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(raw)
    return digest.hexdigest()


def write_model(directory: Path, tensors: Mapping[str, torch.Tensor], *, model_dir: Path, dtype: str) -> None:
    """Write safetensors (with an index, if there are several), and copies of config and tokenizer files."""
    from safetensors.torch import save_file

    shards = _shards(tensors)
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{place:05d}-of-{len(shards):05d}.safetensors" for place in range(1, len(shards) + 1)]
    )
    for file, held in zip(names, shards, strict=True):
        save_file({name: tensors[name].contiguous() for name in held}, directory / file, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {name: file for file, held in zip(names, shards, strict=True) for name in held}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True))
    copy_companions(model_dir, directory, dtype=dtype)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # A copy in any case: the optimizer changes parameters in place.
    return tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def _original_names(policy: PolicyModel, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Undo what transformers renamed or merged on loading (experts, for example): engines read the files' own form."""
    from transformers.core_model_loading import revert_weight_conversion

    reverted: dict[str, torch.Tensor] = revert_weight_conversion(policy.language_model, tensors)
    return reverted


def _shards(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(tensors):
        if shards[-1] and size + tensors[name].nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensors[name].nbytes
    return shards
