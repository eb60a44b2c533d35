"""V6: the sampling settings are the job's, whatever the model directory suggests."""

from pathlib import Path
from typing import Any

from drumroll_planner.records import LeaseKind
from drumroll_rollout.sampling import sampling_settings

from drumroll.api.spec import RLJobSpec


def spec(**overrides: Any) -> RLJobSpec:
    values = {
        "model": {"path": "model"},
        "data": {
            "train": {"path": "t.jsonl"},
            "eval": {"path": "e.jsonl", "temperature": 0.0},
            "maxResponseTokens": 100,
        },
        "reward": {"type": "exact"},
    }
    return RLJobSpec.model_validate(values | overrides)


def test_a_job_that_sets_nothing_samples_from_the_whole_distribution() -> None:
    """V6: with a generation_config.json of 0.7, 20, 0.8 and 1.05 in the model directory, only its end ids count."""
    settings = sampling_settings(spec(), eos_token_ids=(1, 106))
    assert (settings.temperature, settings.top_p, settings.top_k, settings.repetition_penalty) == (1.0, 1.0, 0, 1.0)
    assert settings.stop_token_ids == (1, 106)
    assert settings.max_tokens == 100


def test_no_module_of_the_worker_reads_a_generation_config() -> None:
    import drumroll_rollout

    (folder,) = drumroll_rollout.__path__
    worker = [path for path in Path(folder).glob("*.py") if not path.name.startswith("vllm")]
    assert len(worker) > 10
    for path in worker:
        code = path.read_text().replace("A generation_config.json", "")
        assert "generation_config" not in code, path.name


def test_the_jobs_own_values_are_used_as_they_are() -> None:
    own = {"temperature": 0.6, "topP": 0.9, "topK": 5, "repetitionPenalty": 1.1, "stop": ["###"]}
    settings = sampling_settings(spec(sampling=own), eos_token_ids=())
    assert (settings.temperature, settings.top_p, settings.top_k, settings.repetition_penalty) == (0.6, 0.9, 5, 1.1)
    assert settings.stop_strings == ("###",)


def test_evaluation_has_its_own_temperature_and_no_truncation() -> None:
    job = spec(sampling={"temperature": 0.6, "topP": 0.9, "topK": 5})
    settings = sampling_settings(job, eos_token_ids=(), kind=LeaseKind.EVAL)
    assert (settings.temperature, settings.top_p, settings.top_k) == (0.0, 1.0, 0)


def test_tokens_made_before_count_towards_the_limit() -> None:
    assert sampling_settings(spec(), eos_token_ids=(), done_tokens=40).max_tokens == 60
    assert sampling_settings(spec(), eos_token_ids=(), done_tokens=140).max_tokens == 0
