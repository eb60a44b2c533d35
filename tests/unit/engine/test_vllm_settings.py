"""What vLLM is started with and asked for; no vLLM is needed to say it."""

import pytest
from drumroll_rollout.engine import EngineError, SamplingSettings
from drumroll_rollout.vllm_request import versions_of
from drumroll_rollout.vllm_settings import (
    cache_salt,
    engine_arguments,
    engine_seed,
    library_variables,
    sampling_arguments,
)
from hypothesis import given
from hypothesis import strategies as st

from drumroll.api.spec import RLJobSpec
from drumroll.job import Endpoints, Layout, ResolvedJob


def job(**rollout: object) -> ResolvedJob:
    spec = {
        "model": {"path": "model", "dtype": "float32"},
        "data": {"train": {"path": "rows.jsonl"}, "maxPromptTokens": 100, "maxResponseTokens": 50},
        "reward": {"type": "exact"},
        "steps": 1,
        "rollout": rollout,
    }
    return ResolvedJob(
        uid="uid",
        name="name",
        namespace="default",
        spec=RLJobSpec.model_validate(spec),
        layout=Layout(job_dir="job", data_dir="data", model_dir="model", source_dir="."),
        endpoints=Endpoints(scheduler="127.0.0.1:1", store="redis://127.0.0.1:1"),
    )


SETTINGS = SamplingSettings(1.0, 1.0, 0, 1.0, 16, (2,))


def test_v6_all_sampling_values_are_the_jobs_own():
    """Case V6: product defaults, and nothing left for the model directory to fill in."""
    arguments = sampling_arguments(SETTINGS)
    assert (arguments["temperature"], arguments["top_p"], arguments["top_k"]) == (1.0, 1.0, 0)
    assert (arguments["repetition_penalty"], arguments["stop_token_ids"]) == (1.0, [2])
    assert engine_arguments(job(), on_cpu=True, seed=1)["generation_config"] == "vllm"


def test_a_request_never_carries_a_seed():
    assert "seed" not in sampling_arguments(SETTINGS)


def test_text_is_made_only_to_find_stop_strings():
    assert sampling_arguments(SETTINGS)["detokenize"] is False
    assert sampling_arguments(SamplingSettings(1.0, 1.0, 0, 1.0, 16, (2,), ("END",)))["detokenize"] is True


def test_a_cpu_gets_its_kv_memory_and_a_gpu_its_share():
    on_cpu = engine_arguments(job(engine={"kvCacheMemory": "64Mi"}), on_cpu=True, seed=1)
    on_gpu = engine_arguments(job(engine={"gpuMemoryUtilization": 0.7}), on_cpu=False, seed=1)
    assert (on_cpu["kv_cache_memory_bytes"], on_cpu["enforce_eager"]) == (64 << 20, True)
    assert (on_gpu["gpu_memory_utilization"], on_gpu["enforce_eager"]) == (0.7, False)
    assert "gpu_memory_utilization" not in on_cpu
    assert "kv_cache_memory_bytes" not in on_gpu


def test_the_context_holds_the_longest_prompt_and_answer_and_the_probe_has_a_place():
    arguments = engine_arguments(job(maxConcurrentSamples=8), on_cpu=True, seed=1)
    assert (arguments["max_model_len"], arguments["max_num_seqs"]) == (150, 9)


def test_cores_are_divided_among_the_processes_of_a_job():
    assert library_variables(job(replicas=3), cores=8)["OMP_NUM_THREADS"] == "2"
    assert library_variables(job(replicas=3), cores=2)["OMP_NUM_THREADS"] == "1"
    assert library_variables(job(threads=5), cores=2)["OMP_NUM_THREADS"] == "5"


def test_engines_of_different_replicas_and_starts_have_different_seeds():
    seeds = {engine_seed(job(), replica=replica, instance=instance) for replica in "abc" for instance in "xyz"}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_prefixes_of_different_versions_have_different_salts():
    assert cache_salt(1) != cache_salt(11)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 8)), min_size=1, max_size=6), st.data())
def test_versions_of_any_slice_are_those_of_its_tokens(spans, data):
    tokens = [version for version, length in spans for _ in range(length)]
    starts, position = [], 0
    for version, length in spans:
        starts.append((str(version), position))
        position += length
    begin = data.draw(st.integers(0, len(tokens)))
    end = data.draw(st.integers(begin, len(tokens)))
    assert versions_of(starts, begin, end) == tuple(tokens[begin:end])


def test_tokens_without_a_version_are_an_error():
    with pytest.raises(EngineError, match="no weight version"):
        versions_of([("3", 2)], 0, 4)
