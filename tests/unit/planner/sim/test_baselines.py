"""Baselines train what they are given, keep the lag bound, and stay above the lower bounds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drumroll_planner.sim import Failure, SimJob, simulate
from drumroll_planner.sim.baselines import BASELINES, simulate_baseline
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drumroll.errors import UserError


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    name=st.sampled_from(BASELINES),
    fields=st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**31),
            "num_prompts": st.integers(2, 40),
            "prompts_per_step": st.integers(1, 8),
            "max_policy_lag": st.integers(1, 3),
            "num_replicas": st.integers(1, 6),
            "max_concurrent": st.integers(1, 9),
            "kv_tokens": st.sampled_from([None, 720]),
            "sigma": st.sampled_from([0.0, 1.5]),
        }
    ),
    noise=st.booleans(),
)
def test_every_baseline_trains_every_prompt_once(
    name: str, fields: dict[str, Any], noise: bool, job_of: Callable[..., SimJob]
) -> None:
    job = job_of(**fields)
    predicted = np.random.default_rng(0).uniform(1, 100, len(job.lengths)) if noise else None
    result = simulate_baseline(name, job, predicted=predicted)
    assert sorted(result.trained.tolist()) == list(range(len(job.lengths)))
    assert result.lag_max <= job.rules.max_policy_lag
    assert result.makespan_s >= result.bounds.best_s * (1 - 1e-9)


@pytest.mark.parametrize("name", BASELINES)
def test_each_baseline_ends_a_job_with_long_tails(name: str, job_of: Callable[..., SimJob]) -> None:
    result = simulate_baseline(name, job_of(sigma=1.5, num_replicas=3), record=True)
    assert sorted(result.trained.tolist()) == list(range(32))
    assert len(result.spans) == result.counts.samples


def test_synchronous_and_one_step_have_the_lag_of_their_names(job_of: Callable[..., SimJob]) -> None:
    job = job_of(max_policy_lag=4)
    assert simulate_baseline("synchronous", job).lag_max == 0
    assert simulate_baseline("rollpacker", job).lag_max == 0
    off = simulate_baseline("one_step_off", job)
    assert off.lag_max == 1
    synchronous = simulate_baseline("synchronous", job).makespan_s
    assert simulate(job, mode="fast").makespan_s < off.makespan_s < synchronous


def test_rollpacker_defers_long_prompts(job_of: Callable[..., SimJob]) -> None:
    # One prompt in eight is very long: the first rounds do without them.
    job = job_of(sigma=0.0, num_prompts=40, prompts_per_step=8, num_replicas=4)
    lengths = job.lengths.copy()
    lengths[::8] = 600
    job = replace(job, lengths=lengths)
    result = simulate_baseline("rollpacker", job)
    assert not set(result.trained[:8].tolist()) & set(range(0, 40, 8))
    assert result.counts.tokens > result.counts.tokens_trained
    assert result.makespan_s < simulate_baseline("synchronous", job).makespan_s


def test_wrong_uses_are_refused(job_of: Callable[..., SimJob]) -> None:
    with pytest.raises(UserError, match="write one of synchronous"):
        simulate_baseline("magic", job_of())
    with pytest.raises(UserError, match="without failures"):
        simulate_baseline("seer", job_of(failures=(Failure(1.0, 0),)))
