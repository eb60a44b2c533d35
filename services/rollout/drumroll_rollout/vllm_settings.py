"""What vLLM is started with and what a request carries: pure functions of the job, with no vLLM in them.

Nothing of the model directory's generation_config.json gets in (`generation_config="vllm"`, and all sampling values
are given with each request); a request never carries a seed, since a seeded prompt that is prefilled in
chunks ends vLLM 0.32 on a CPU.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from drumroll.api.quantity import quantity_bytes
from drumroll.job import ResolvedJob
from drumroll_rollout.engine import SamplingSettings

TRANSFER_BACKEND = "drumroll"
"""Name under which the plugin registers the loader of published weights."""
FORK_SWITCH = "DRUMROLL_VLLM_FORK"
"""Set in our own processes only: other users of vLLM in this environment keep its defaults."""
PROBE_PRIORITY = -(2**30)
"""The logit probe goes before every sample."""
SPARE_SEQUENCES = 1
"""A place for the probe beside the samples."""


def library_variables(job: ResolvedJob, *, cores: int | None = None, compiles: bool = True) -> dict[str, str]:
    """Variables that must be set before torch and vLLM are imported; `compiles`: there is a C++ compiler here."""
    spec = job.spec
    available = cores if cores is not None else len(os.sched_getaffinity(0))
    threads = spec.rollout.threads or max(1, available // (spec.rollout.replicas + spec.trainer.replicas))
    return {
        # Spinning OpenMP threads cost 4 to 10 times where cores are shared.
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        FORK_SWITCH: "1",
        # Small functions of vLLM are compiled even in eager mode, and fail where nothing can compile them.
        **({} if compiles else {"TORCHDYNAMO_DISABLE": "1"}),
    }


def engine_seed(job: ResolvedJob, *, replica: str, instance: str) -> int:
    """Seed of an engine's sampler: two replicas that answer the same prompt must not draw the same answer."""
    return int.from_bytes(hashlib.sha256(f"{job.spec.seed}/{replica}/{instance}".encode()).digest()[:4], "big") >> 1


def engine_arguments(job: ResolvedJob, *, on_cpu: bool, seed: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's AsyncEngineArgs."""
    spec, engine = job.spec, job.spec.rollout.engine
    arguments: dict[str, Any] = {
        "model": job.layout.model_dir,
        "dtype": spec.model.dtype,
        "trust_remote_code": spec.model.trust_remote_code,
        "seed": seed,
        "max_model_len": spec.data.max_prompt_tokens + spec.data.max_response_tokens,
        "max_num_seqs": spec.rollout.max_concurrent_samples + SPARE_SEQUENCES,
        "tensor_parallel_size": spec.rollout.tensor_parallel_size,
        "enable_prefix_caching": engine.prefix_caching,
        "enforce_eager": engine.enforce_eager or on_cpu,
        # All weights come from the weight store; the model directory gives the architecture.
        "load_format": "dummy",
        "generation_config": "vllm",
        # Log-probabilities of the distribution that was sampled from: after temperature, penalties and cuts.
        "logprobs_mode": "processed_logprobs",
        "scheduling_policy": "priority",
        # Text is needed to find stop strings, and for nothing else.
        "skip_tokenizer_init": not spec.sampling.stop,
        "enable_log_requests": False,
        "disable_log_stats": True,
    }
    if engine.max_batched_tokens is not None:
        arguments["max_num_batched_tokens"] = engine.max_batched_tokens
    if on_cpu:
        arguments["kv_cache_memory_bytes"] = quantity_bytes(engine.kv_cache_memory)
    else:
        arguments["gpu_memory_utilization"] = engine.gpu_memory_utilization
    return arguments


def sampling_arguments(settings: SamplingSettings) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams for one sample, but for the kind of output."""
    return {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": settings.repetition_penalty,
        "max_tokens": settings.max_tokens,
        "stop_token_ids": list(settings.stop_token_ids),
        "stop": list(settings.stop_strings),
        # End tokens are those of the settings, not those that vLLM finds in the model directory.
        "ignore_eos": True,
        "detokenize": bool(settings.stop_strings),
        "skip_special_tokens": False,
        "logprobs": 0,
    }


def probe_arguments() -> Mapping[str, Any]:
    """Keyword arguments of SamplingParams for a logit probe: raw log-probabilities of the prompt's tokens."""
    return {
        "temperature": 1.0,
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "detokenize": False,
        "ignore_eos": True,
        "skip_reading_prefix_cache": True,
    }


def cache_salt(version: int) -> str:
    """Prefixes are shared within one weight version only."""
    return f"weights-{version}"
