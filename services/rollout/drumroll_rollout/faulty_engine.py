"""An engine with faults on purpose, for tests and rehearsals: wraps any engine and spoils chosen samples."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from drumroll_rollout.chunks import answer
from drumroll_rollout.engine import Chunk, Engine, EngineError, EngineStats, GenerationRequest


class Fault(StrEnum):
    """What goes wrong with one try at a sample."""

    NONE = "none"
    NAN_LOGPROBS = "nan_logprobs"
    """Every log-probability of the completion is NaN."""
    INFINITE_LOGPROB = "infinite_logprob"
    """The first token of the first chunk has -inf."""
    SHORT_LOGPROBS = "short_logprobs"
    """One log-probability fewer than tokens."""
    NEVER_ANSWERS = "never_answers"
    """Not one chunk ever comes, not even after an abort."""
    DIES = "dies"
    """The engine is dead after the first chunk: this request and all later ones raise."""


class FaultyEngine:
    """Implements `engine.Engine` over another one."""

    def __init__(
        self,
        engine: Engine,
        faults: Mapping[tuple[int, int], Sequence[Fault]],
        *,
        wrong_scores: frozenset[int] = frozenset(),
    ) -> None:
        """`faults`: (row, index) to the fault of each try in order; further tries are good.

        `wrong_scores`: weight versions whose log-probabilities are off, so that their logit probe fails.
        """
        self._engine = engine
        self._faults = {key: list(tries) for key, tries in faults.items()}
        self._wrong_scores = wrong_scores
        self._dead = False

    @property
    def version(self) -> int | None:
        return self._engine.version

    async def start(self) -> None:
        await self._engine.start()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        tries = self._faults.get((request.row, request.index))
        fault = tries.pop(0) if tries else Fault.NONE
        if fault is Fault.NEVER_ANSWERS:
            await asyncio.Event().wait()
        if self._dead:
            raise EngineError("the engine is dead")
        async with answer(self._engine, request) as chunks:
            async for chunk in chunks:
                yield _spoil(chunk, fault)
                if fault is Fault.DIES or self._dead:
                    self._dead = True
                    raise EngineError("the engine is dead")
                if fault is Fault.INFINITE_LOGPROB and chunk.token_ids:
                    fault = Fault.NONE

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def load_weights(self, version: int, directory: Path) -> None:
        await self._engine.load_weights(version, directory)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        scores = await self._engine.score(token_ids)
        return [score - 1.0 for score in scores] if self._engine.version in self._wrong_scores else scores

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()


def _spoil(chunk: Chunk, fault: Fault) -> Chunk:
    if fault is Fault.NAN_LOGPROBS:
        return replace(chunk, logprobs=(math.nan,) * len(chunk.logprobs))
    if fault is Fault.INFINITE_LOGPROB and chunk.logprobs:
        return replace(chunk, logprobs=(-math.inf, *chunk.logprobs[1:]))
    if fault is Fault.SHORT_LOGPROBS:
        return replace(chunk, logprobs=chunk.logprobs[:-1])
    return chunk
