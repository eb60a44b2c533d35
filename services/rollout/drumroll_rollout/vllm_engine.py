"""vLLM in process, behind the Engine protocol: the engine core is a child of this process, requests go in and out here.

Weight updates happen between two decode steps: pause, load, resume. Three rules keep KV of older weights away from new
prompts: prefixes are shared within one version (the cache salt), calls of `generate` wait while an update runs, and
a request that an update meets before its first token starts anew.

    made -> started -> (ready <-> updating) -> closed
                  `-> dead: every call and every iterator raises EngineError
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drumroll import environment
from drumroll.errors import JobError, UserError
from drumroll.job import ResolvedJob
from drumroll.model_files import model_files
from drumroll_rollout.engine import Chunk, EngineError, EngineStats, GenerationRequest
from drumroll_rollout.vllm_request import LiveRequest
from drumroll_rollout.vllm_settings import engine_seed, library_variables

if TYPE_CHECKING:
    from drumroll_rollout.vllm_client import VllmClient

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_CLOSE_SECONDS = 10.0
T = TypeVar("T")


class VllmEngine:
    """An Engine on vLLM's AsyncLLM. Start it before anything else opens threads or connections: its child is forked."""

    def __init__(self, job: ResolvedJob, *, replica: str = "rollout", instance: str | None = None) -> None:
        """`replica` and `instance` go into the sampler's seed, so that no two engines draw the same answers."""
        self._job = job
        self._seed = engine_seed(job, replica=replica, instance=instance or secrets.token_hex(8))
        self._client: VllmClient | None = None
        self._version: int | None = None
        self._dead: str | None = None
        self._live: dict[str, LiveRequest] = {}
        self._open = asyncio.Event()
        self._open.set()
        """Cleared while an update runs."""
        self._update_lock = asyncio.Lock()
        self._tokens_total = 0

    @property
    def version(self) -> int | None:
        return self._version

    async def start(self) -> None:
        """Bring vLLM up with dummy weights; the event loop stands still meanwhile, for seconds on a CPU.

        Raises:
            JobError: prompt and answer are longer than the model can take.
            EngineError: vLLM refuses the model or its settings; the message is vLLM's.
        """
        compiles = shutil.which("g++") is not None
        environment.set_library_variables(library_variables(self._job, compiles=compiles))
        os.register_at_fork(after_in_child=_forget_signals_of_parent)
        with self._failing("the engine does not start"):
            from drumroll_rollout.vllm_client import VllmClient

            try:
                self._client = VllmClient(self._job, seed=self._seed)
            except ValueError as error:
                if "max_model_len" in str(error):
                    raise _too_long(self._job) from error
                raise
            await self._client.warm_up()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        if request.request_id in self._live:
            raise EngineError(f"request {request.request_id} is running already")
        live = self._live[request.request_id] = LiveRequest(request)
        try:
            finished = request.sampling.max_tokens < 1
            if finished:
                yield live.last_chunk("length")
            while not finished:
                if not await self._submit(live):
                    yield live.last_chunk("abort")
                    return
                async with contextlib.aclosing(self._outputs(live)) as chunks:
                    async for chunk in chunks:
                        self._tokens_total += len(chunk.token_ids)
                        finished = chunk.finish_reason is not None
                        yield chunk
        finally:
            self._live.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        live.aborted.set()
        if live.queue is not None:
            with self._failing(f"cannot abort {request_id}"):
                await self._alive_client().abort([live.queue])

    async def load_weights(self, version: int, directory: Path) -> None:
        """Load a verified version; requests stand still meanwhile and go on with the new weights.

        Raises:
            EngineError: the load failed. Where it failed half-way, the engine is dead: its model is neither the old nor
                the new one.
        """
        try:
            files = model_files(directory)
        except (UserError, OSError) as error:
            raise EngineError(f"cannot load weight version {version}: {error}") from error
        async with self._update_lock:
            client = self._alive_client()
            self._open.clear()
            try:
                with self._failing(f"loading weight version {version} failed", fatal=True):
                    await self._while_alive(self._update(client, version, directory, files))
            except asyncio.CancelledError:
                self._die(f"loading weight version {version} was cancelled half-way")
                raise
            finally:
                self._open.set()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        if len(token_ids) < 2:
            return []
        await self._open.wait()
        with self._failing("the logit probe failed"):
            return await self._while_alive(self._alive_client().score(token_ids))

    def stats(self) -> EngineStats:
        if self._client is None:
            return EngineStats(0, 0, 0.0, self._tokens_total)
        load = self._client.load
        return EngineStats(load.running, load.waiting, load.kv_usage, self._tokens_total)

    async def close(self) -> None:
        """End the engine's processes; iterators that still run raise EngineError."""
        client, self._client = self._client, None
        self._die("the engine is closed")
        self._open.set()
        if client is not None:
            await client.shut_down(_CLOSE_SECONDS)

    # ---- inside

    async def _submit(self, live: LiveRequest) -> bool:
        """Hand a request to vLLM, once no update runs; False if it was aborted before."""
        while not self._open.is_set() and not live.aborted.is_set():
            await _first(self._open.wait(), live.aborted.wait())
        if live.aborted.is_set():
            return False
        client = self._alive_client()
        if self._version is None:
            raise EngineError("no weights are loaded yet")
        with self._failing(f"request {live.request.request_id} was refused"):
            live.attach(*await client.add(live.request, version=self._version))
        if not live.aborted.is_set() and self._open.is_set():
            return True
        # An abort, or an update, came while the request was on its way.
        live.again = not live.aborted.is_set()
        await client.abort([live.queue])
        return True

    async def _outputs(self, live: LiveRequest) -> AsyncGenerator[Chunk, None]:
        """Chunks until the request is finished, or is to start anew."""
        finished = False
        try:
            while not finished:
                with self._failing(f"request {live.request.request_id} failed"):
                    output = await live.next_output()
                finished = output.finished
                chunk = live.chunk(output)
                if live.again and chunk.finish_reason == "abort" and not live.aborted.is_set():
                    return
                yield chunk
        finally:
            queue, live.queue = live.queue, None
            if not finished and self._client is not None and self._dead is None:
                # The caller went away.
                await self._client.abort([queue])

    async def _update(self, client: "VllmClient", version: int, directory: Path, files: list[str]) -> None:
        await client.pause()
        untouched = [live for live in self._live.values() if live.queue is not None and not live.has_tokens]
        for live in untouched:
            live.again = True
        await client.abort([live.queue for live in untouched])
        await client.update(version, directory, files)
        self._version = version
        await client.resume()

    def _alive_client(self) -> "VllmClient":
        if self._dead is None and self._client is not None and self._client.errored:
            self._die("the engine's process is gone")
        if self._dead is not None:
            raise EngineError(self._dead)
        if self._client is None:
            raise EngineError("the engine is not started")
        return self._client

    def _die(self, reason: str) -> None:
        """From now on nothing works; iterators that wait for outputs are told."""
        self._dead = self._dead or reason
        for live in self._live.values():
            if live.queue is not None:
                live.queue.put(EngineError(self._dead))

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that waits for the engine's process, but not for one that is gone."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=_LOOK_SECONDS))[0]:
                self._alive_client()
            return task.result()
        finally:
            task.cancel()

    @contextlib.contextmanager
    def _failing(self, what: str, *, fatal: bool = False) -> Iterator[None]:
        """Turn whatever vLLM raises into EngineError: this is the edge to a library with errors of all kinds."""
        try:
            yield
        except Exception as error:
            if self._client is not None and self._client.errored:
                self._die(f"the engine's process is gone ({what})")
            elif fatal:
                self._die(f"{what}: {error}")
            if isinstance(error, EngineError | UserError):
                raise
            raise EngineError(self._dead or f"{what}: {error}") from error


def _too_long(job: ResolvedJob) -> JobError:
    data = job.spec.data
    return JobError(
        f"data.maxPromptTokens ({data.max_prompt_tokens}) plus data.maxResponseTokens ({data.max_response_tokens}) is "
        f"more than the model in {job.layout.model_dir} can take: lower one of them, or see "
        "max_position_embeddings in its config.json"
    )


def _forget_signals_of_parent() -> None:
    """A forked child shares the pipe by which the parent's event loop learns of signals; its own must not go there."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
