"""The GRPO loss, token by token.

Which policy is "old" (see verl's rollout correction, decoupled mode, and AReaL's decoupled PPO):
- `rollout_is: token` keeps three policies apart. The proximal one, around which the ratio is clipped, is the policy as
  the step begins; the behaviour one wrote the token. The loss is w * max(-r A, -clip(r) A) with
  r = exp(logp - logp_proximal) and w = min(exp(logp_proximal - logp_behaviour), threshold), w without gradient.
  A step is one optimizer update, so that r is 1 at every token where its gradient is taken, and the truncated weight
  alone bounds the update.
- `rollout_is: none` takes the behaviour policy as the old one: r = exp(logp - logp_behaviour), clipped to
  [1 - clip_eps, 1 + clip_eps_high], and w = 1.

Every exponent is clamped before it is taken: clamping the result leaves the gradient infinite.
"""

from dataclasses import dataclass
from typing import Literal

import torch

MAX_EXPONENT = 20.0


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Numbers of the algorithm."""

    clip_eps: float
    clip_eps_high: float
    rollout_is: Literal["token", "none"]
    rollout_is_threshold: float
    kl_coef: float
    kl_estimator: Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """All [N]; only `loss` carries a gradient."""

    loss: torch.Tensor
    policy_loss: torch.Tensor
    kl_loss: torch.Tensor
    clipped: torch.Tensor
    """1 where the clip decided."""
    weight: torch.Tensor
    """Importance weight after truncation."""
    truncated: torch.Tensor
    """1 where the truncation decided."""


def token_loss(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    settings: LossSettings,
    *,
    proximal: torch.Tensor | None = None,
    reference: torch.Tensor | None = None,
) -> TokenLoss:
    """Loss of each token, [N] float32. `proximal` defaults to `logprobs` without gradient: one update a step."""
    decoupled = settings.rollout_is == "token"
    start = logprobs.detach() if proximal is None else proximal
    ratio = safe_exp(logprobs - (start if decoupled else behaviour))
    weight, truncated = torch.ones_like(start), torch.zeros_like(start)
    if decoupled:
        full = safe_exp(start - behaviour)
        weight = full.clamp(max=settings.rollout_is_threshold)
        truncated = (full > settings.rollout_is_threshold).float()
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1.0 - settings.clip_eps, 1.0 + settings.clip_eps_high)
    policy_loss = weight * torch.maximum(free, held)
    kl = torch.zeros_like(start) if reference is None else kl_estimate(logprobs, reference, settings.kl_estimator)
    return TokenLoss(
        loss=policy_loss + settings.kl_coef * kl,
        policy_loss=policy_loss.detach(),
        kl_loss=kl.detach(),
        clipped=(held > free).float().detach(),
        weight=weight,
        truncated=truncated,
    )


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """Schulman's estimators of KL(policy || reference) from tokens of the policy; computed in float32 or wider.

    Differences beyond 20 nats count as 20, with no gradient from there: value and gradient stay finite.
    """
    difference = _wide(reference) - _wide(logprobs)
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    bounded = difference.clamp(-MAX_EXPONENT, MAX_EXPONENT)
    return torch.expm1(bounded) - bounded


def safe_exp(values: torch.Tensor) -> torch.Tensor:
    """exp of values clamped to [-20, 20]."""
    return torch.exp(values.clamp(-MAX_EXPONENT, MAX_EXPONENT))


def mean_over_tokens(losses: torch.Tensor, *, num_tokens: int, world_size: int) -> torch.Tensor:
    """A micro-batch's part of the mean over the tokens of all micro-batches of all ranks.

    `num_tokens` counts the whole global batch. Gradients are averaged over the ranks afterwards, hence the factor: a
    rank with few tokens must not weigh more.
    """
    return losses.sum() * (world_size / max(num_tokens, 1))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float64 else values.float()
