"""The policy network: a causal language model of transformers that answers with log-probabilities of packed sequences.

Master weights are float32. Logits are made for the tokens that are trained alone, a chunk at a time, and made again in
the backward pass, so that no [T, vocabulary] array in float32 ever stands whole. `PolicyModel.forward` is the only way
through the network: sharding hooks sit on it.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from drumroll.errors import JobError
from drumroll_trainer.learner import attention

logger = logging.getLogger(__name__)

CHUNK_ELEMENTS = 1 << 24
"""Logits of one chunk: 64 MiB in float32."""


class PolicyModel(torch.nn.Module):
    """A language model that gives, for chosen places of packed sequences, what the loss needs of the next token."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model = language_model
        self._packed = language_model.config._attn_implementation == attention.PACKED_ATTENTION

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.language_model.config

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        lengths: tuple[int, ...],
        predict_at: torch.Tensor,
        targets: torch.Tensor,
        temperatures: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of each target and entropy at its place, both [N] float32, after division by the temperature.

        token_ids and positions are [T]; predict_at, targets and temperatures are [N]. The entropy carries no gradient.
        """
        keywords: dict[str, Any] = {"packed_lengths": lengths} if self._packed else {}
        output = self.language_model.base_model(
            input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, **keywords
        )
        hidden = output.last_hidden_state[0].index_select(0, predict_at)
        head = self.language_model.get_output_embeddings()
        size = max(1, CHUNK_ELEMENTS // int(self.config.get_text_config().vocab_size))
        parts = zip(*(torch.split(tensor, size) for tensor in (hidden, targets, temperatures)), strict=True)
        if hidden.shape[0] <= size or not torch.is_grad_enabled():
            results = [self._of_chunk(head, *part) for part in parts]
        else:
            results = [checkpoint(self._of_chunk, head, *part, use_reentrant=False) for part in parts]
        return torch.cat([r[0] for r in results]), torch.cat([r[1] for r in results])

    def _of_chunk(
        self, head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._scaled(head(hidden)).float() / temperatures.unsqueeze(1)
        return logprob_and_entropy(logits, targets)

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """What some families do to their logits after the head."""
        config = self.config
        if scale := getattr(config, "logit_scale", None):
            logits = logits * scale
        if divisor := getattr(config, "logits_scaling", None):
            logits = logits / divisor
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def own_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Name in the language model and parameter, tied ones once, in name order."""
        yield from sorted(self.language_model.named_parameters(), key=lambda pair: pair[0])


def logprob_and_entropy(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of scaled logits [N, V]: log-probability of the targets [N], and entropy [N] (without gradient)."""
    log_total = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(1, targets.unsqueeze(1)).squeeze(1) - log_total
    with torch.no_grad():
        log_all = logits - log_total.unsqueeze(1)
        entropy = -(log_all.exp() * log_all).nan_to_num(0.0).sum(dim=-1)
    return logprobs, entropy


def load_policy(
    model_dir: Path, *, device: torch.device, gradient_checkpointing: bool, trust_remote_code: bool
) -> PolicyModel:
    """Read a model directory into float32.

    Raises:
        JobError: it is not a causal language model that can be trained on packed sequences.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as library_logging

    library_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust_remote_code)
        implementation = attention.register() if attention.supports(config) else "eager"
        language_model = AutoModelForCausalLM.from_pretrained(
            model_dir,
            dtype=torch.float32,
            attn_implementation=implementation,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError) as error:
        raise JobError(f"model.path: {model_dir} cannot be loaded as a causal language model: {error}") from error
    return prepare(language_model, device=device, gradient_checkpointing=gradient_checkpointing)


def prepare(language_model: Any, *, device: torch.device, gradient_checkpointing: bool) -> PolicyModel:
    """Wrap a loaded model: no dropout anywhere, and proof that the packed path gives the model's own answers."""
    for module in language_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    language_model.train(gradient_checkpointing)
    if gradient_checkpointing:
        language_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = PolicyModel(language_model.to(device))
    _check_packed_path(policy, device)
    return policy


@torch.no_grad()
def _check_packed_path(policy: PolicyModel, device: torch.device) -> None:
    """Two short sequences, packed, against the model's own forward of each: families differ after the last layer."""
    vocabulary = int(policy.config.get_text_config().vocab_size)
    sequences = [[(7 * i + 3) % vocabulary for i in range(length)] for length in (5, 9)]
    flat = torch.tensor([token for s in sequences for token in s], device=device)
    positions = torch.cat([torch.arange(len(s), device=device) for s in sequences])
    predict_at = torch.tensor([0, 1, 2, 3, *range(5, 13)], device=device)
    targets, ones = flat[predict_at + 1], torch.ones(len(predict_at), device=device)
    packed, _ = policy(flat, positions, (5, 9), predict_at, targets, ones)
    alone = torch.cat([_own_logprobs(policy, s, device) for s in sequences])
    if not torch.allclose(packed, alone, atol=1e-3, rtol=1e-3):
        worst = float((packed - alone).abs().max())
        raise JobError(
            f"model.path: {type(policy.language_model).__name__} cannot be trained on packed sequences: "
            f"log-probabilities differ by {worst:.3g} from the model's own"
        )


def _own_logprobs(policy: PolicyModel, token_ids: list[int], device: torch.device) -> torch.Tensor:
    tokens = torch.tensor([token_ids], device=device)
    keywords: dict[str, Any] = {"packed_lengths": (len(token_ids),)} if policy._packed else {}
    logits = policy.language_model(input_ids=tokens, use_cache=False, **keywords).logits[0, :-1].float()
    return logprob_and_entropy(logits, tokens[0, 1:])[0]
