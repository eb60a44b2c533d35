"""One optimizer step over packed micro-batches, and what is measured on the way."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from drumroll.errors import JobFailed
from drumroll_trainer.batch import MicroBatch
from drumroll_trainer.learner.fsdp import World, arithmetic, total_norm
from drumroll_trainer.learner.loss import LossSettings, TokenLoss, mean_over_tokens, safe_exp, token_loss
from drumroll_trainer.learner.model import PolicyModel

_SUMS = (
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/ppo_kl",
    "actor/entropy",
    "actor/pg_clipfrac",
    "rollout_corr/rollout_is_mean",
    "rollout_corr/rollout_is_truncated_fraction",
    "mismatch/logprob_abs_mean",
    "mismatch_kl/all/mean",
    "same_version_sum",
    "same_version_count",
)


@dataclass(frozen=True, slots=True, eq=False)
class Networks:
    """What a step needs: the policy, the reference (kl_coef > 0 only), and where they run."""

    policy: PolicyModel
    reference: PolicyModel | None
    world: World
    half_precision: bool

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Context of every forward pass."""
        return arithmetic(self.world, half_precision=self.half_precision)


def accumulate(
    networks: Networks, batches: Sequence[MicroBatch], settings: LossSettings, *, num_tokens: int, version: int
) -> dict[str, float]:
    """Add the gradients of this rank's micro-batches; returns means over the tokens of all ranks.

    `num_tokens` is the global batch's. Every rank must come with the same number of micro-batches.
    """
    device = networks.world.device
    sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
    largest = torch.zeros(1, dtype=torch.float64, device=device)
    for batch in batches:
        placed = _Placed.of(batch, device)
        with networks.arithmetic():
            logprobs, entropy = networks.policy(*placed.inputs)
        losses = token_loss(
            logprobs, placed.behaviour, placed.advantages, settings, reference=_reference(networks, placed)
        )
        loss = mean_over_tokens(losses.loss, num_tokens=num_tokens, world_size=networks.world.size)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        if len(batch.targets):
            sums += _measure(losses, logprobs.detach(), entropy, placed, version)
            largest = torch.maximum(largest, losses.weight.max().double())
    if networks.world.size > 1:
        dist.all_reduce(sums)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return _means(sums.tolist(), num_tokens) | {"rollout_corr/rollout_is_max": float(largest)}


def apply(networks: Networks, optimizer: torch.optim.Optimizer, *, max_grad_norm: float) -> float:
    """Clip and step; returns the gradients' norm before clipping.

    Raises:
        JobFailed: the norm is not finite; parameters are untouched.
    """
    parameters = [p for p in networks.policy.parameters() if p.requires_grad]
    norm = total_norm(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    if norm != norm or norm == float("inf"):
        raise JobFailed(f"the gradients' norm is {norm}: the step was not taken")
    optimizer.step()
    return norm


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A micro-batch on the device."""

    inputs: tuple[torch.Tensor, torch.Tensor, tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor]
    behaviour: torch.Tensor
    advantages: torch.Tensor
    versions: torch.Tensor

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device) -> "_Placed":
        def put(array: Any) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            (
                put(batch.token_ids),
                put(batch.positions),
                batch.lengths,
                put(batch.predict_at),
                put(batch.targets),
                put(batch.temperatures),
            ),
            put(batch.behaviour_logprobs),
            put(batch.advantages),
            put(batch.versions),
        )


def _reference(networks: Networks, placed: _Placed) -> torch.Tensor | None:
    if networks.reference is None:
        return None
    with torch.no_grad(), networks.arithmetic():
        logprobs: torch.Tensor = networks.reference(*placed.inputs)[0]
    return logprobs


def _measure(
    losses: TokenLoss, logprobs: torch.Tensor, entropy: torch.Tensor, placed: _Placed, version: int
) -> torch.Tensor:
    """Sums over the micro-batch's tokens, in the order of _SUMS."""
    drift = logprobs - placed.behaviour
    same = (placed.versions == version).float()
    columns = (
        losses.policy_loss,
        losses.kl_loss,
        -drift,
        entropy,
        losses.clipped,
        losses.weight,
        losses.truncated,
        drift.abs(),
        safe_exp(drift) - 1 - drift,
        drift.abs() * same,
        same,
    )
    return torch.stack([column.double().sum() for column in columns])


def _means(sums: Sequence[float], num_tokens: int) -> dict[str, float]:
    named = dict(zip(_SUMS, sums, strict=True))
    same_sum, same_count = named.pop("same_version_sum"), named.pop("same_version_count")
    means = {name: value / max(num_tokens, 1) for name, value in named.items()}
    if same_count:
        means["mismatch/logprob_abs_same_version"] = same_sum / same_count
    means["tokens/same_version"] = same_count
    return means
