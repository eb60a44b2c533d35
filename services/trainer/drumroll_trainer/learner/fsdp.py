"""Sharding over data-parallel ranks by FSDP2, and the process group below it. One process is not sharded at all."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from drumroll_trainer.learner.model import PolicyModel

GROUP_TIMEOUT = timedelta(minutes=30)
"""Rank 0 sends something at least every minute, so only a dead rank is silent for so long."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among the trainer's."""

    rank: int
    size: int
    device: torch.device


def join(rank: int, size: int, local_rank: int) -> World:
    """Meet the other ranks; addresses come from MASTER_ADDR and MASTER_PORT. gloo on CPUs, NCCL on GPUs."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if size > 1:
        # gloo beside NCCL: rank 0's commands travel in host memory.
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=GROUP_TIMEOUT)
    return World(rank, size, device)


def leave(world: World) -> None:
    """Undo `join`."""
    if world.size > 1:
        dist.destroy_process_group()


def shard(policy: PolicyModel, world: World, *, half_precision: bool) -> PolicyModel:
    """Shard every layer, then the rest. Gradients are averaged over the ranks. In place; returns the argument."""
    if world.size == 1:
        return policy
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half_precision and world.device.type == "cuda" else None,
        reduce_dtype=torch.float32,
    )
    for layer in _layers(policy):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    return policy


def arithmetic(world: World, *, half_precision: bool) -> AbstractContextManager[Any]:
    """Half precision arithmetic on one GPU; FSDP sees to it on several, and a CPU computes in float32."""
    if half_precision and world.size == 1 and world.device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter's whole value; a collective call where it is sharded."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def forget_gathered(policy: PolicyModel) -> None:
    """Drop what a forward pass without a backward one left gathered, so that the next sees the parameters anew."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(policy, FSDPModule):
        policy.reshard()


def total_norm(norm: torch.Tensor) -> float:
    """The gradients' norm over all ranks as a number."""
    return float(full_tensor(norm))


def _layers(policy: PolicyModel) -> list[torch.nn.Module]:
    """The longest list of equal blocks: the decoder's layers, under whatever name."""
    lists = [list(m) for m in policy.modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])
