"""The one place that touches vLLM's classes: AsyncLLM with its child process, behind a few calls in our own words.

Imported only after the variables of `vllm_settings.library_variables` are set: torch and vLLM read them when they load.
"""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from drumroll.job import ResolvedJob
from drumroll_rollout.engine import GenerationRequest
from drumroll_rollout.vllm_settings import (
    PROBE_PRIORITY,
    TRANSFER_BACKEND,
    cache_salt,
    engine_arguments,
    probe_arguments,
    sampling_arguments,
)


class VllmClient:
    """See the module. Raises whatever vLLM raises."""

    def __init__(self, job: ResolvedJob, *, seed: int) -> None:
        """Start the engine's process; the event loop stands still until it is up."""
        arguments = engine_arguments(job, on_cpu=current_platform.is_cpu(), seed=seed)
        arguments["weight_transfer_config"] = WeightTransferConfig(backend=TRANSFER_BACKEND)
        self.load = EngineLoad()
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[self.load.logger])

    @property
    def errored(self) -> bool:
        """Whether the engine's process is gone."""
        return bool(self._llm.errored)

    async def warm_up(self) -> None:
        """Ask once what vLLM asks before its first request."""
        await self._llm.get_supported_tasks()

    async def add(self, request: GenerationRequest, *, version: int) -> tuple[Any, Any]:
        """Hand a request in; returns vLLM's collector of its outputs and its state of the request."""
        prompt = tokens_input(list(request.prompt_ids), cache_salt=cache_salt(version))
        settings = SamplingParams(**sampling_arguments(request.sampling), output_kind=RequestOutputKind.DELTA)
        queue = await self._llm.add_request(request.request_id, prompt, settings, priority=request.priority)
        return queue, self._llm.output_processor.request_states.get(queue.request_id)

    async def abort(self, queues: Sequence[Any]) -> None:
        """End requests; each collector gets what there is and an end."""
        if queues:
            await self._llm.abort([queue.request_id for queue in queues], internal=True)

    async def pause(self) -> None:
        """Stop after the running step; requests stay, with their KV."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def resume(self) -> None:
        await self._llm.resume_generation()

    async def update(self, version: int, directory: Path, files: list[str]) -> None:
        """Load weights while paused; tokens made from now on carry `version`."""
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest({"directory": str(directory), "files": files}))
        await self._llm.finish_weight_update(weight_version=str(version))

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Raw log-probability of each token but the first, with no cached prefix."""
        prompt = tokens_input(list(token_ids), cache_salt=f"probe-{secrets.token_hex(8)}")
        settings = SamplingParams(**probe_arguments(), output_kind=RequestOutputKind.FINAL_ONLY)
        outputs = self._llm.generate(prompt, settings, f"probe-{secrets.token_hex(8)}", priority=PROBE_PRIORITY)
        last = [output async for output in outputs][-1]
        positions = last.prompt_logprobs[1:]
        return [position[token].logprob for token, position in zip(token_ids[1:], positions, strict=True)]

    async def shut_down(self, timeout_s: float) -> None:
        """End the engine's processes."""
        handler = self._llm.output_handler
        if handler is not None:
            # First, so that it does not take the end of the engine for its death.
            handler.cancel()
            await asyncio.wait([handler])
        await asyncio.to_thread(self._llm.shutdown, timeout_s)
        self._close_connection()
        # It would shut down once more when the interpreter has taken its modules apart already.
        self._llm.shutdown = lambda timeout=None: None

    def _close_connection(self) -> None:
        """What vLLM leaves to the garbage collector; in this thread, since ZeroMQ's sockets belong to one."""
        resources = self._llm.engine_core.resources
        for socket in (resources.output_socket, resources.input_socket):
            if socket is not None:
                socket.close(linger=0)
        if resources.output_queue_task is not None:
            resources.output_queue_task.cancel()
        resources.ctx.destroy(linger=0)


class EngineLoad:
    """How busy vLLM is, from the figures that its scheduler sends with every step."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0

    def logger(self, vllm_config: Any, engine_index: int = 0) -> StatLoggerBase:
        """vLLM's factory of stat loggers."""
        return _Recorder(self)


class _Recorder(StatLoggerBase):  # type: ignore[misc]  # vLLM is untyped to mypy
    def __init__(self, load: EngineLoad) -> None:
        self._load = load

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self._load.running = scheduler_stats.num_running_reqs
            self._load.waiting = scheduler_stats.num_waiting_reqs
            self._load.kv_usage = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        pass
