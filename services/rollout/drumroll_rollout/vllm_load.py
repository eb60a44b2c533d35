"""How busy vLLM is, from the figures that its scheduler sends with every step."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class EngineLoad:
    """The newest figures."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0

    def logger(self, vllm_config: Any, engine_index: int = 0) -> StatLoggerBase:
        """vLLM's factory of stat loggers."""
        return _Recorder(self)


class _Recorder(StatLoggerBase):
    def __init__(self, load: EngineLoad) -> None:
        self._load = load

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        if scheduler_stats is not None:
            self._load.running = scheduler_stats.num_running_reqs
            self._load.waiting = scheduler_stats.num_waiting_reqs
            self._load.kv_usage = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        pass
