"""vLLM in process, behind the Engine protocol: the engine core is a child of this process, requests go in and out here.

Weight updates happen between two decode steps: pause, load, resume. Three rules keep KV of older weights away from new
prompts: prefixes are shared within one version (the cache salt), calls of `generate` wait while an update runs, and
a request that an update meets before its first token starts anew.

    made -> started -> (loading <-> ready) -> closed
                  `-> dead: every call and every iterator raises EngineError
"""

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from drumroll import environment
from drumroll.errors import UserError
from drumroll.job import ResolvedJob
from drumroll.model_files import model_files
from drumroll_rollout.engine import Chunk, EngineError, EngineStats, GenerationRequest
from drumroll_rollout.vllm_request import LiveRequest
from drumroll_rollout.vllm_settings import (
    PROBE_PRIORITY,
    TRANSFER_BACKEND,
    cache_salt,
    engine_arguments,
    engine_seed,
    library_variables,
    probe_arguments,
    sampling_arguments,
)

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0


class VllmEngine:
    """An Engine on vLLM's AsyncLLM. Start it before anything else opens threads or connections: its child is forked."""

    def __init__(self, job: ResolvedJob, *, replica: str = "rollout", instance: str | None = None) -> None:
        self._job = job
        self._seed = engine_seed(job, replica=replica, instance=instance or secrets.token_hex(8))
        self._llm: Any = None
        self._version: int | None = None
        self._dead: str | None = None
        self._live: dict[str, LiveRequest] = {}
        self._ready = asyncio.Event()
        self._update_lock = asyncio.Lock()
        self._probes = itertools.count()
        self._tokens_total = 0
        self._load: Any = None

    @property
    def version(self) -> int | None:
        return self._version

    async def start(self) -> None:
        """Bring vLLM up with dummy weights; the event loop stands still meanwhile, for seconds on a CPU.

        Raises:
            EngineError: vLLM refuses the model or its settings; the message is vLLM's.
        """
        environment.set_library_variables(library_variables(self._job))
        os.register_at_fork(after_in_child=_forget_signals_of_parent)
        with self._failing("the engine does not start"):
            self._llm, self._load = _make_llm(self._job, self._seed)
            # Warms what vLLM asks of its core once, so that the first request does not wait for it.
            await self._llm.get_supported_tasks()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        if request.request_id in self._live:
            raise EngineError(f"request {request.request_id} is running already")
        live = self._live[request.request_id] = LiveRequest(request)
        try:
            if request.sampling.max_tokens < 1:
                yield Chunk(request.request_id, (), (), (), "length")
                return
            finished = False
            while not finished:
                if not await self._submit(live):
                    yield live.aborted_chunk()
                    return
                async for chunk in self._outputs(live):
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
                await self._llm.abort(live.queue.request_id, internal=True)

    async def load_weights(self, version: int, directory: Path) -> None:
        try:
            files = model_files(directory)
        except (UserError, OSError) as error:
            raise EngineError(f"cannot load weight version {version}: {error}") from error
        async with self._update_lock:
            self._check_alive()
            self._ready.clear()
            try:
                # A failure in the middle leaves a model that is neither the old nor the new one: the engine is dead then.
                with self._failing(f"loading weight version {version} failed", fatal=True):
                    await self._update(version, directory, files)
            finally:
                self._ready.set()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        if len(token_ids) < 2:
            return []
        await self._ready.wait()
        self._check_alive()
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        prompt = TokensPrompt(prompt_token_ids=list(token_ids), cache_salt=f"probe-{secrets.token_hex(8)}")
        settings = SamplingParams(**probe_arguments(), output_kind=RequestOutputKind.FINAL_ONLY)
        with self._failing("the logit probe failed"):
            request_id = f"probe-{next(self._probes)}"
            outputs = self._llm.generate(prompt, settings, request_id, priority=PROBE_PRIORITY)
            last = [output async for output in outputs][-1]
        positions = last.prompt_logprobs[1:]
        return [position[token].logprob for token, position in zip(token_ids[1:], positions, strict=True)]

    def stats(self) -> EngineStats:
        load = self._load
        if load is None:
            return EngineStats(0, 0, 0.0, self._tokens_total)
        return EngineStats(load.running, load.waiting, load.kv_usage, self._tokens_total)

    async def close(self) -> None:
        """End the engine's processes; iterators that still run raise EngineError."""
        llm, self._llm = self._llm, None
        self._dead = self._dead or "the engine is closed"
        self._ready.set()
        if llm is None:
            return
        for live in list(self._live.values()):
            if live.queue is not None:
                live.queue.put(EngineError(self._dead))
        await asyncio.to_thread(llm.shutdown, _CLOSE_SECONDS)

    # ---- inside

    async def _submit(self, live: LiveRequest) -> bool:
        """Hand a request to vLLM, once no update runs; False if it was aborted before."""
        if not self._ready.is_set():
            await _first(self._ready.wait(), live.aborted.wait())
        if live.aborted.is_set():
            return False
        self._check_alive()
        if self._version is None:
            raise EngineError("no weights are loaded")
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        request = live.request
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt_ids), cache_salt=cache_salt(self._version))
        with self._failing(f"request {request.request_id} was refused"):
            settings = SamplingParams(**sampling_arguments(request.sampling), output_kind=RequestOutputKind.DELTA)
            queue = await self._llm.add_request(request.request_id, prompt, settings, priority=request.priority)
        live.attach(queue, self._llm.output_processor.request_states.get(queue.request_id))
        return True

    async def _outputs(self, live: LiveRequest) -> AsyncIterator[Chunk]:
        """Chunks until the request is finished, or is to start anew."""
        finished = False
        try:
            while not finished:
                with self._failing(f"request {live.request.request_id} failed"):
                    output = await live.next_output()
                finished = output.finished
                chunk = live.chunk(output)
                if chunk.finish_reason == "abort" and live.again and not live.aborted.is_set():
                    return
                yield chunk
        finally:
            queue, live.queue = live.queue, None
            if not finished and self._dead is None:
                # The caller went away.
                await self._llm.abort(queue.request_id, internal=True)

    async def _update(self, version: int, directory: Path, files: list[str]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        llm = self._llm
        await llm.pause_generation(mode="keep", clear_cache=False)
        untouched = [live for live in self._live.values() if live.queue is not None and not live.has_tokens]
        for live in untouched:
            live.again = True
        await llm.abort([live.queue.request_id for live in untouched], internal=True)
        await llm.start_weight_update()
        await llm.update_weights(WeightTransferUpdateRequest({"directory": str(directory), "files": files}))
        await llm.finish_weight_update(weight_version=str(version))
        self._version = version
        await llm.resume_generation()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineError(self._dead)
        if self._llm is None:
            raise EngineError("the engine is not started")
        if self._llm.errored:
            self._dead = "the engine's process is gone"
            raise EngineError(self._dead)

    @contextlib.contextmanager
    def _failing(self, what: str, *, fatal: bool = False) -> Iterator[None]:
        """Turn whatever vLLM raises into EngineError: this is the edge to a library with errors of all kinds."""
        try:
            yield
        except EngineError:
            raise
        except Exception as error:
            if self._llm is not None and self._llm.errored:
                self._dead = self._dead or f"the engine's process is gone ({what})"
            elif fatal:
                self._dead = f"{what}: {error}"
            raise EngineError(self._dead or f"{what}: {error}") from error


def _make_llm(job: ResolvedJob, seed: int) -> tuple[Any, Any]:
    """AsyncLLM with its child process, and the object that its load figures go to."""
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from drumroll_rollout.vllm_load import EngineLoad

    arguments = engine_arguments(job, on_cpu=current_platform.is_cpu(), seed=seed)
    arguments["weight_transfer_config"] = WeightTransferConfig(backend=TRANSFER_BACKEND)
    load = EngineLoad()
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[load.logger])
    return llm, load


def _forget_signals_of_parent() -> None:
    """A forked child shares the pipe by which the parent's event loop learns of signals; its own must not go there."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


async def _first(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
