"""One sample inside of vLLM: its outputs as chunks, the weight version of each token, its end.

vLLM tells the versions of a request's tokens only when it is done; a chunk needs them at once, so they are read where
vLLM itself keeps them: (version, index of the first token made with it).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from drumroll_rollout.engine import Chunk, EngineError, GenerationRequest

FinishReason = Literal["stop", "length", "abort"]
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def versions_of(starts: Sequence[tuple[str, int]], begin: int, end: int) -> tuple[int, ...]:
    """Version of each token in [begin, end).

    >>> versions_of([("3", 0), ("4", 2)], 1, 4)
    (3, 4, 4)
    """
    versions: list[int] = []
    for index, (version, start) in enumerate(starts):
        stop = starts[index + 1][1] if index + 1 < len(starts) else end
        versions.extend([int(version)] * (min(stop, end) - max(start, begin)))
    if len(versions) != end - begin:
        raise EngineError(f"tokens {begin} to {end} have no weight version: {list(starts)!r}")
    return tuple(versions)


class LiveRequest:
    """A request from the call of `generate` to its last chunk."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.aborted = asyncio.Event()
        """The caller wants it to end."""
        self.again = False
        """A weight update met it before its first token: it starts anew, its prompt is read by the new weights."""
        self.num_tokens = 0
        self.queue: Any = None
        """vLLM's collector of outputs, while the request is inside of vLLM."""
        self._state: Any = None

    def attach(self, queue: Any, state: Any) -> None:
        """Take note of vLLM's side of the request."""
        self.queue, self._state, self.again = queue, state, False

    @property
    def has_tokens(self) -> bool:
        """Whether vLLM has made a token, handed out or not."""
        return self._state is not None and bool(self._state.weight_version_starts)

    async def next_output(self) -> Any:
        """The next output, with everything that came since the last one."""
        return self.queue.get_nowait() or await self.queue.get()

    def chunk(self, output: Any) -> Chunk:
        """The chunk for one output of vLLM."""
        completion = output.outputs[0]
        token_ids = tuple(completion.token_ids)
        begin, end = self.num_tokens, self.num_tokens + len(token_ids)
        versions = versions_of(self._state.weight_version_starts, begin, end) if token_ids else ()
        self.num_tokens = end
        return Chunk(
            self.request.request_id,
            token_ids,
            _sampled_logprobs(token_ids, completion.logprobs),
            versions,
            self._finish_reason(completion.finish_reason),
        )

    def last_chunk(self, reason: FinishReason) -> Chunk:
        """The last chunk of a request that ends outside of vLLM."""
        return Chunk(self.request.request_id, (), (), (), reason)

    def _finish_reason(self, reason: str | None) -> FinishReason | None:
        if reason is None:
            return None
        if reason not in _FINISH:
            raise EngineError(f"request {self.request.request_id} ended with {reason!r}")
        return _FINISH[reason]


def _sampled_logprobs(token_ids: Sequence[int], logprobs: Any) -> tuple[float, ...]:
    """One value per token as it came, NaN included; a missing one is an error of the engine and never made up."""
    if len(token_ids) != len(logprobs or ()):
        raise EngineError(f"{len(token_ids)} tokens came with {len(logprobs or ())} log-probabilities")
    return tuple(position[token].logprob for token, position in zip(token_ids, logprobs or (), strict=True))
