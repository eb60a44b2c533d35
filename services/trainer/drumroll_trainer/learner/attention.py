"""Causal attention over packed sequences, each of which sees itself alone, as an attention function of transformers.

The lengths travel as the keyword `packed_lengths` through the model's forward. No [T, T] mask is made: on a GPU in half
precision torch's variable-length kernel runs, elsewhere one call per sequence. Dropout is never applied: training is
a function of parameters and samples alone.
"""

from functools import cache
from typing import Any

import torch
from torch.nn import functional

PACKED_ATTENTION = "drumroll_packed"
_SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention"})
_REFUSED_KEYWORDS = ("softcap", "s_aux", "position_bias", "head_mask")


@cache
def register() -> str:
    """Make the attention known to transformers; returns the name to give as `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    return PACKED_ATTENTION


def supports(config: Any) -> bool:
    """Whether all layers of a model are plain causal attention, sliding or not."""
    layers = set(getattr(config, "layer_types", None) or ())
    chunked = getattr(config, "attention_chunk_size", None)
    softcap = getattr(config, "attn_logit_softcapping", None)
    return layers <= _SUPPORTED_LAYERS and not chunked and not softcap


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_lengths: tuple[int, ...],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, T, D]; key and value [1, kv heads, T, D]. Returns [1, T, heads, D]."""
    refused = [name for name in _REFUSED_KEYWORDS if keywords.get(name) is not None]
    if refused:
        raise ValueError(f"packed attention does not know {', '.join(refused)}")
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _by_kernel(query, key, value, packed_lengths, scaling, sliding_window), None
    split = (torch.split(tensor, list(packed_lengths), dim=2) for tensor in (query, key, value))
    parts = [_one_sequence(q, k, v, scaling, sliding_window) for q, k, v in zip(*split, strict=True)]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _one_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    length = query.shape[2]
    grouped = query.shape[1] != key.shape[1]
    mask = None
    if window is not None and length > window:
        places = torch.arange(length, device=query.device)
        behind = places[:, None] - places[None, :]
        mask = (behind >= 0) & (behind < window)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )


def _by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: tuple[int, ...],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    starts = torch.tensor((0, *lengths), device=query.device, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    result = varlen_attn(
        query.squeeze(0).transpose(0, 1),
        key.squeeze(0).transpose(0, 1),
        value.squeeze(0).transpose(0, 1),
        starts,
        starts,
        longest,
        longest,
        scale=scaling,
        # The window of transformers counts the token itself, the kernel's counts those to the left.
        window_size=(-1, 0) if window is None else (window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(result, torch.Tensor)
    return result.unsqueeze(0)
