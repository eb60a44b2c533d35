"""What a rollout worker asks of an inference engine. Token ids in, token ids out; never text."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling parameters as applied; never the model directory's own."""

    temperature: float
    top_p: float
    top_k: int
    """0: no limit."""
    repetition_penalty: float
    max_tokens: int
    """Completion tokens that may still be made."""
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sample to generate (or to go on with: then `prompt_ids` ends with the tokens made so far)."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingSettings
    row: int
    """Row of the data set, for engines that replay given lengths."""
    index: int
    """Sample of the group, likewise."""
    done_tokens: int = 0
    """How many of `prompt_ids` at its end are tokens of this sample made earlier."""
    priority: int = 0
    """Smaller is sooner."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one request. Lengths of `token_ids`, `logprobs` and `versions` agree."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the distribution that was sampled from. May be NaN or -inf where the engine's are: never repaired here."""
    versions: tuple[int, ...]
    """The weight version that made each token."""
    finish_reason: Literal["stop", "length", "abort"] | None


@dataclass(frozen=True, slots=True)
class EngineStats:
    running: int
    waiting: int
    kv_usage: float
    """0..1."""
    tokens_total: int
    """Tokens made since the start."""


class Engine(Protocol):
    """An inference engine with in-flight weight updates. One event loop, any number of requests at a time."""

    @property
    def version(self) -> int | None:
        """The weight version that is loaded, or None before the first load."""
        ...

    async def start(self) -> None:
        """Bring the engine up; it has some weights of the model's shape, but no version yet."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Generate; the last chunk has a finish reason. Goes on over weight updates.

        Raises:
            EngineError: the engine is dead or refused the request.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its iterator yields what there is, then a chunk with finish_reason `abort`."""
        ...

    async def load_weights(self, version: int, directory: Path) -> None:
        """Load a verified version while requests are in flight; they go on with the new weights afterwards.

        No KV of older weights is used for a prompt that begins after the load.
        """
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Raw log-probability of token_ids[i + 1] given the ones before it, by the loaded weights; for the probe."""
        ...

    def stats(self) -> EngineStats: ...

    async def close(self) -> None:
        """End the engine and every process of it."""
        ...


class EngineError(Exception):
    """The engine is dead or refused a request."""
