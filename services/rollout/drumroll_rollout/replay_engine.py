"""An engine without a model: answers of given lengths, paced by a step-cost model in real time.

One decode loop serves all requests, as in a real engine: a step takes `step_seconds` plus
`step_seconds_per_sequence` for each running sequence but the first, and gives each running one a token. Short steps are
handed out several at a time, so that the event loop is not flooded. A weight load stops the loop for `load_seconds`.

It has no weights: `score` answers with the logit probe that it finds in the loaded version's own manifest. A probe
of a replay engine therefore proves that the directory was read, and nothing about logits.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from drumroll.api.spec import ReplayEngine as ReplaySettings
from drumroll.weights_manifest import MANIFEST, WeightManifest
from drumroll_rollout.engine import Chunk, EngineError, EngineStats, GenerationRequest
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens

_WAKE_SECONDS = 0.01
"""Steps are handed out together until they fill this time."""
_FREE_STEPS = 256
"""Steps handed out together where a step takes no time."""


class Pace(Protocol):
    """Time for the decode loop; tests give one that is moved by hand."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class RealPace:
    """The machine's time."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    position: int
    """Next position of the answer."""
    end: int
    finish: Literal["stop", "length"]
    token_ids: tuple[int, ...]
    """Of the positions from the request's `done_tokens` to `end`; drawn at once, for a draw has a price."""
    logprobs: tuple[float, ...]
    chunks: asyncio.Queue[Chunk | EngineError] = field(default_factory=asyncio.Queue)


class ReplayEngine:
    """Implements `engine.Engine`; see the module."""

    def __init__(
        self,
        settings: ReplaySettings,
        *,
        lengths: ReplayLengths,
        tokens: ReplayTokens,
        slots: int,
        pace: Pace | None = None,
    ) -> None:
        """`slots`: sequences that run at a time; further ones wait."""
        self._settings = settings
        self._lengths = lengths
        self._tokens = tokens
        self._slots = slots
        self._pace = pace or RealPace()
        self._running: dict[str, _Running] = {}
        self._waiting: list[tuple[int, int, _Running]] = []
        self._arrivals = itertools.count()
        self._wake = asyncio.Event()
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._loop: asyncio.Task[None] | None = None
        self._version: int | None = None
        self._probe: tuple[tuple[int, ...], tuple[float, ...]] = ((), ())
        self._tokens_total = 0
        self._closed = False

    @property
    def version(self) -> int | None:
        return self._version

    async def start(self) -> None:
        self._loop = asyncio.create_task(self._decode(), name="replay-engine")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        running = self._admit(request)
        try:
            while True:
                chunk = await running.chunks.get()
                if isinstance(chunk, EngineError):
                    raise chunk
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            self._remove(running)

    def _admit(self, request: GenerationRequest) -> _Running:
        if self._closed or self._version is None:
            raise EngineError("the engine is closed" if self._closed else "no weights are loaded")
        if request.sampling.max_tokens < 1:
            raise EngineError(f"request {request.request_id} may make no token")
        length = self._lengths(request.row, request.index)
        limit = request.done_tokens + request.sampling.max_tokens
        end = max(request.done_tokens + 1, min(length, limit))
        finish: Literal["stop", "length"] = "stop" if length <= limit else "length"
        ids, logprobs = self._tokens.draw(request.row, request.index, request.done_tokens, end)
        if finish == "stop" and request.sampling.stop_token_ids:
            ids = (*ids[:-1], request.sampling.stop_token_ids[0])
        running = _Running(request, request.done_tokens, end, finish, ids, logprobs)
        heapq.heappush(self._waiting, (request.priority, next(self._arrivals), running))
        self._fill()
        return running

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            _, _, running = heapq.heappop(self._waiting)
            self._running[running.request.request_id] = running
            self._wake.set()

    def _remove(self, running: _Running) -> None:
        request_id = running.request.request_id
        if self._running.get(request_id) is running:
            del self._running[request_id]
        self._waiting = [entry for entry in self._waiting if entry[2] is not running]
        heapq.heapify(self._waiting)
        self._fill()

    async def abort(self, request_id: str) -> None:
        waiting = (entry[2] for entry in self._waiting if entry[2].request.request_id == request_id)
        running = self._running.get(request_id) or next(waiting, None)
        if running is not None:
            running.chunks.put_nowait(Chunk(request_id, (), (), (), "abort"))
            self._remove(running)

    async def load_weights(self, version: int, directory: Path) -> None:
        self._unpaused.clear()
        try:
            self._probe = await asyncio.to_thread(_read_probe, directory)
            await self._pace.sleep(self._settings.load_seconds)
            self._version = version
        finally:
            self._unpaused.set()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        probed, expected = self._probe
        if tuple(token_ids) == probed:
            return list(expected)
        return list(self._tokens.draw(0, 0, 0, max(0, len(token_ids) - 1))[1])

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=min(1.0, len(self._running) / self._slots),
            tokens_total=self._tokens_total,
        )

    async def close(self) -> None:
        self._closed = True
        for running in (*self._running.values(), *(entry[2] for entry in self._waiting)):
            running.chunks.put_nowait(EngineError("the engine was closed"))
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def _decode(self) -> None:
        due = self._pace.now()
        while True:
            if not self._running:
                self._wake.clear()
                await self._wake.wait()
                due = self._pace.now()
            if not self._unpaused.is_set():
                await self._unpaused.wait()
                due = self._pace.now()
            steps, seconds = self._next_steps()
            due = max(due, self._pace.now() - 1.0) + seconds
            await self._pace.sleep(due - self._pace.now())
            if self._unpaused.is_set():
                self._hand_out(steps)

    def _next_steps(self) -> tuple[int, float]:
        """How many steps to take before the next wake-up, and how long they take, given who ends when."""
        ends = sorted(running.end - running.position for running in self._running.values())
        steps, seconds, alive = 0, 0.0, len(ends)
        while alive and seconds < _WAKE_SECONDS and steps < _FREE_STEPS:
            seconds += self._settings.step_seconds + self._settings.step_seconds_per_sequence * (alive - 1)
            steps += 1
            while alive and ends[len(ends) - alive] <= steps:
                alive -= 1
        return steps, seconds

    def _hand_out(self, steps: int) -> None:
        for running in list(self._running.values()):
            end = min(running.end, running.position + steps)
            running.chunks.put_nowait(self._chunk(running, end))
            self._tokens_total += end - running.position
            running.position = end
            if end == running.end:
                self._remove(running)

    def _chunk(self, running: _Running, end: int) -> Chunk:
        first = running.request.done_tokens
        part = slice(running.position - first, end - first)
        assert self._version is not None
        return Chunk(
            running.request.request_id,
            running.token_ids[part],
            running.logprobs[part],
            (self._version,) * (end - running.position),
            running.finish if end == running.end else None,
        )


def _read_probe(directory: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    try:
        probe = WeightManifest.from_json((directory / MANIFEST).read_bytes()).probe
    except OSError as error:
        raise EngineError(f"cannot read the weights in {directory}: {error}") from error
    return (probe.token_ids, probe.expected_logprobs) if probe else ((), ())
