import math

import pytest
import torch
from drumroll_trainer.learner.loss import LossSettings, kl_estimate, mean_over_tokens, token_loss
from drumroll_trainer.learner.model import logprob_and_entropy

DEFAULTS = {
    "clip_eps": 0.2,
    "clip_eps_high": 0.28,
    "rollout_is": "token",
    "rollout_is_threshold": 2.0,
    "kl_coef": 0.0,
    "kl_estimator": "k3",
}


def settings(**changes: object) -> LossSettings:
    return LossSettings(**{**DEFAULTS, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("difference", "k1", "k2", "k3"),
    [
        (0.1, -0.1, 0.005000000000000001, 0.005170918075647624),
        (-0.1, 0.1, 0.005000000000000001, 0.004837418035959606),
        (1.0, -1.0, 0.5, 0.7182818284590451),
        (-1.0, 1.0, 0.5, 0.36787944117144233),
    ],
)
def test_kl_estimators_at_normal_points_n4(difference: float, k1: float, k2: float, k3: float) -> None:
    policy = torch.tensor([-1.0], dtype=torch.float64)
    reference = policy + difference
    found = [float(kl_estimate(policy, reference, name)) for name in ("k1", "k2", "k3")]
    assert found == pytest.approx([k1, k2, k3], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_of_policies_far_apart_has_a_finite_value_and_gradient_n4(dtype: torch.dtype, estimator: str) -> None:
    policy = torch.tensor([-120.0], dtype=dtype, requires_grad=True)
    value = kl_estimate(policy, torch.tensor([-0.5], dtype=dtype), estimator)  # type: ignore[arg-type]
    value.sum().backward()  # type: ignore[no-untyped-call]
    assert policy.grad is not None
    assert math.isfinite(float(value.detach()))
    assert torch.isfinite(policy.grad).all()


def test_temperature_scales_logits_before_the_softmax_v2() -> None:
    logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64) / 0.5
    logprob, entropy = logprob_and_entropy(logits, torch.tensor([0]))
    assert float(logprob) == pytest.approx(-0.01814992791780973, abs=1e-6)
    assert float(entropy) == pytest.approx(0.09009476776617596, abs=1e-6)


def test_importance_weight_is_truncated_and_carries_no_gradient() -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    behaviour = torch.tensor([-1.0 - math.log(3), -1.0 + math.log(2)])
    found = token_loss(logprobs, behaviour, torch.tensor([1.0, 1.0]), settings())
    assert found.weight.tolist() == pytest.approx([2.0, 0.5])
    assert found.truncated.tolist() == [1, 0]
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-2.0, -0.5])


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(1.5, 1.0, 0.0), (1.5, -1.0, 1.5), (0.5, -1.0, 0.0), (0.5, 1.0, -0.5), (1.25, 1.0, -1.25)],
)
def test_clip_is_higher_above_than_below(ratio: float, advantage: float, gradient: float) -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    proximal = logprobs.detach() - math.log(ratio)
    found = token_loss(logprobs, proximal, torch.tensor([advantage]), settings(), proximal=proximal)
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert float(logprobs.grad) == pytest.approx(gradient, abs=1e-6)
    assert float(found.clipped) == (gradient == 0.0)


def test_without_importance_sampling_the_behaviour_is_the_old_policy() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    found = token_loss(logprobs, torch.tensor([-2.0]), torch.tensor([1.0]), settings(rollout_is="none"))
    assert found.loss.item() == pytest.approx(-1.28)
    assert found.clipped.item() == 1


def test_kl_term_enters_with_its_weight() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    found = token_loss(
        logprobs, logprobs.detach(), torch.tensor([0.0]), settings(kl_coef=0.5), reference=torch.tensor([0.0])
    )
    assert found.loss.item() == pytest.approx(0.5 * 0.7182818284590451)


def test_tokens_weigh_the_same_whatever_the_micro_batch_n2() -> None:
    gradients = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 7.0])
    parameter = torch.tensor(0.0, requires_grad=True)
    for part in torch.split(gradients, [5, 1]):
        mean_over_tokens(parameter * part, num_tokens=6, world_size=1).backward()  # type: ignore[no-untyped-call]
    assert parameter.grad is not None
    assert float(parameter.grad) == pytest.approx(2.0)
