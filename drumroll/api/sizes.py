"""How much the sample stream must hold: the sizes behind `stream.embedded.maxBytes`."""

from typing import TYPE_CHECKING

from drumroll.api.quantity import parse_quantity

if TYPE_CHECKING:
    from drumroll.api.spec import RLJobSpec

MIB = 1 << 20
BYTES_PER_TOKEN = 10
"""Id (4), log-probability (4), loss mask (1), and what the store adds to them."""
BYTES_PER_SAMPLE = 4096
"""Header, version segments, reward parts, sampling parameters, and the store's own entry."""
LADDER = (*(f"{1 << power}{unit}" for unit in ("Mi", "Gi", "Ti", "Pi") for power in range(10)), "1Ei", "2Ei")
"""Round sizes, ascending, to propose."""


def worst_sample_bytes(spec: "RLJobSpec") -> int:
    """Bytes in the store of a sample whose prompt and answer are at their longest."""
    tokens = spec.data.max_prompt_tokens + spec.data.max_response_tokens
    return tokens * BYTES_PER_TOKEN + BYTES_PER_SAMPLE


def bytes_needed(spec: "RLJobSpec") -> int:
    """The smallest `maxBytes` whose 85 % (where admission stops) hold two steps beyond the target."""
    samples_per_step = spec.algorithm.prompts_per_step * spec.algorithm.group_size
    return (spec.resolved_target_lag + 2) * samples_per_step * worst_sample_bytes(spec) // 17 * 20


def proposed_size(num_bytes: int) -> str:
    """The smallest round size that holds so many bytes."""
    return next(size for size in LADDER if parse_quantity(size) >= num_bytes)
