"""AdamW with a linear warm-up. The learning rate is a function of the step's index, so that it needs no state."""

from collections.abc import Iterable

import torch

from drumroll.api.spec import Algorithm

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def learning_rate(algorithm: Algorithm, step: int) -> float:
    """Rate of step `step` (from 0): rises over warmup_steps, the first step's is already above 0."""
    if algorithm.warmup_steps == 0:
        return algorithm.learning_rate
    return algorithm.learning_rate * min(1.0, (step + 1) / algorithm.warmup_steps)


def make_optimizer(parameters: Iterable[torch.nn.Parameter], algorithm: Algorithm) -> torch.optim.AdamW:
    """AdamW with state for every parameter from the start, so that a checkpoint has a fixed set of tensors.

    Vectors (norms, biases) are not decayed.
    """
    held = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in held if p.ndim >= 2], "weight_decay": algorithm.weight_decay},
        {"params": [p for p in held if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=algorithm.learning_rate,
        betas=(algorithm.beta1, algorithm.beta2),
        fused=True,
    )
    for parameter in held:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """For the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
