"""A simulated job: both modes agree, bounds hold, nothing is lost, and no length, failure or join stops it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drumroll_planner.costs import CostModel
from drumroll_planner.sim import Failure, Join, SimJob, SimResult, simulate
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from drumroll.errors import JobFailed, UserError

JobOf = Callable[..., SimJob]

# Without shrinking: the fields say it all, and a failing run is slow.
ANY_JOB = settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def any_fields(draw: Any) -> dict[str, Any]:
    bound = draw(st.integers(0, 4))
    steps = draw(st.sampled_from([None, None, 5]))
    return {
        "seed": draw(st.integers(0, 2**31)),
        "num_prompts": draw(st.integers(3, 32)),
        "group_size": draw(st.integers(1, 4)),
        "prompts_per_step": draw(st.integers(1, 6)),
        "max_policy_lag": bound,
        "target_policy_lag": draw(st.integers(0, bound)),
        "lag_policy": draw(st.sampled_from(["wait", "wait", "mask", "drop"])),
        "order": draw(st.sampled_from(["plan", "completion"])),
        "steps": steps,
        "epochs": None if steps else draw(st.integers(1, 2)),
        "sigma": draw(st.sampled_from([0.0, 0.9, 2.0])),
        "num_replicas": draw(st.integers(1, 5)),
        "max_concurrent": draw(st.integers(1, 9)),
        "chunk_tokens": draw(st.sampled_from([16, 8192])),
        "kv_tokens": draw(st.sampled_from([None, 720, 2000])),
        "share_prefix": draw(st.booleans()),
        "publish_every": draw(st.integers(1, bound + 1)),
        "checkpoint_every": draw(st.integers(1, 4)),
        "micro_batch": draw(st.sampled_from([None, 2])),
        "turnaround_s": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "notice_s": draw(st.sampled_from([0.0, 0.3])),
    }


@st.composite
def any_faults(draw: Any) -> dict[str, Any]:
    failure = st.builds(Failure, st.floats(0.0, 40.0), st.integers(0, 5), st.one_of(st.none(), st.floats(0.0, 60.0)))
    failures = draw(st.lists(failure, max_size=4))
    # Somebody is always left: the last of the joins never fails.
    joins = [Join(draw(st.floats(0.0, 50.0))) for _ in range(draw(st.integers(0, 2)))]
    return {"failures": tuple(failures), "joins": (*joins, Join(60.0))}


def check(job: SimJob, result: SimResult) -> None:
    """What holds of every result."""
    rules = job.rules
    assert result.makespan_s >= result.bounds.best_s * (1 - 1e-9)
    trained = result.trained.tolist()
    assert len(set(trained)) == len(trained)
    counted = job.lengths[result.trained % len(job.lengths)].sum()
    assert result.counts.tokens_trained == counted <= result.counts.tokens
    if rules.lag_policy != "mask":
        assert result.lag_max <= rules.max_policy_lag
    if rules.epochs is not None and rules.lag_policy != "drop":
        assert sorted(trained) == list(range(rules.num_prompts * rules.epochs))
    elif rules.epochs is None:
        assert len(trained) == job.num_tickets
    ends = [span.end_s for span in result.steps]
    assert ends == sorted(ends)
    assert all(after.start_s >= before.end_s for before, after in zip(result.steps, result.steps[1:], strict=False))
    assert 0.0 <= result.trainer_idle <= 1.0
    assert all(0.0 <= idle <= 1.0 for idle in (*result.rollout_idle, *result.rollout_empty))


@ANY_JOB
@given(fields=any_fields())
def test_both_modes_agree_and_no_bound_is_broken(fields: dict[str, Any], job_of: JobOf) -> None:
    job = job_of(**fields)
    policy, fast = simulate(job, mode="policy"), simulate(job, mode="fast")
    check(job, policy)
    check(job, fast)
    assert fast.makespan_s == pytest.approx(policy.makespan_s, rel=0.01)
    assert fast.lag_mean == pytest.approx(policy.lag_mean, abs=0.05)
    if job.rules.lag_policy == "wait" and job.rules.epochs is not None:
        assert fast.counts.tokens == policy.counts.tokens


@ANY_JOB
@given(fields=any_fields(), faults=any_faults(), mode=st.sampled_from(["policy", "fast"]))
def test_failures_and_joins_stop_nothing(
    fields: dict[str, Any], faults: dict[str, Any], mode: Any, job_of: JobOf
) -> None:
    job = job_of(**fields, **faults)
    check(job, simulate(job, mode=mode))


@pytest.mark.parametrize("mode", ["policy", "fast"])
def test_adversarial_lengths_stop_nothing(mode: Any, job_of: JobOf) -> None:
    # Every first ticket of a step is a hundred times as long as all others.
    job = job_of(sigma=0.0, median=10)
    lengths = job.lengths.copy()
    lengths[::4] = 1000
    job = replace(job, lengths=lengths)
    check(job, simulate(job, mode=mode))


@pytest.mark.parametrize("steps", [5, None])
def test_what_is_dropped_is_counted_and_its_place_filled(steps: int | None, job_of: JobOf) -> None:
    job = job_of(lag_policy="drop", sigma=2.0, max_policy_lag=1, steps=steps, epochs=None if steps else 1)
    policy, fast = simulate(job, mode="policy"), simulate(job, mode="fast")
    assert fast.counts == policy.counts
    assert fast.counts.dropped > 0
    if steps:
        assert fast.counts.tickets_trained == 20
    else:
        assert fast.counts.tickets_trained + fast.counts.dropped == 32


def test_twice_the_costs_take_twice_the_time(job_of: JobOf, costs: CostModel) -> None:
    free = costs.with_trainer()
    times = [
        simulate(job_of(costs=replace(free.scaled(factor), checkpoint_s=0.0)), mode="fast").makespan_s
        for factor in (1.0, 2.0)
    ]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-9)


def test_equal_jobs_have_equal_results(job_of: JobOf) -> None:
    first, second = (simulate(job_of(), mode="policy", record=True) for _ in range(2))
    assert first.makespan_s == second.makespan_s
    np.testing.assert_array_equal(first.spans, second.spans)


def test_a_failed_replica_costs_its_tokens_and_its_samples_come_back(job_of: JobOf) -> None:
    job = job_of(failures=(Failure(1.0, 0, back_after_s=5.0),))
    for mode in ("policy", "fast"):
        result = simulate(job, mode=mode)  # type: ignore[arg-type]
        assert result.counts.returned > 0
        assert result.counts.tokens > result.counts.tokens_trained
        check(job, result)


def test_a_fleet_that_is_gone_is_told_and_not_waited_for_for_ever(job_of: JobOf) -> None:
    job = job_of(failures=(Failure(0.5, 0), Failure(0.5, 1)))
    for mode in ("policy", "fast"):
        with pytest.raises(JobFailed, match="no replica is left"):
            simulate(job, mode=mode)  # type: ignore[arg-type]


def test_a_job_that_the_policy_gives_up_has_failed(job_of: JobOf) -> None:
    job = job_of(failures=tuple(Failure(0.4 + number, 0, 0.1) for number in range(8)), heartbeat_s=0.1)
    rules = replace(job.rules, max_attempts=1, max_failed_tickets=0.0)
    with pytest.raises(JobFailed, match="tickets failed"):
        simulate(replace(job, rules=rules), mode="policy")


def test_more_replicas_are_no_slower_where_generation_is_the_bottleneck(job_of: JobOf) -> None:
    times = [simulate(job_of(num_replicas=count, sigma=0.3), mode="fast").makespan_s for count in (1, 2, 4)]
    assert times == sorted(times, reverse=True)


def test_unequal_replicas_are_better_used_by_step_time(job_of: JobOf, costs: CostModel) -> None:
    fleet = [costs, costs.scaled(3.0), costs]
    results = [
        simulate(job_of(costs=fleet, num_replicas=3, routing=routing, max_concurrent=16), mode="fast").makespan_s
        for routing in ("fewest", "step_time")
    ]
    assert results[1] < results[0]


def test_a_turnaround_costs_at_least_its_time_for_each_answer_of_a_single_place(job_of: JobOf) -> None:
    fields = {"num_replicas": 1, "max_concurrent": 1}
    times = [simulate(job_of(turnaround_s=turnaround, **fields), mode="policy") for turnaround in (0.0, 0.5)]
    assert times[1].makespan_s >= times[0].makespan_s + 0.45 * times[0].counts.samples


def test_a_late_notice_makes_new_tickets_wait_rather_than_begin_on_old_weights(job_of: JobOf) -> None:
    soon, late = (simulate(job_of(notice_s=notice), mode="policy") for notice in (0.0, 3.0))
    assert late.makespan_s > soon.makespan_s
    assert late.lag_mean <= soon.lag_mean


def test_padding_takes_the_trainer_longer_than_packing(job_of: JobOf) -> None:
    packed, padded = (simulate(job_of(micro_batch=size), mode="fast") for size in (None, 4))
    tokens = packed.steps[0].tokens
    assert tokens == padded.steps[0].tokens
    assert padded.steps[0].trained_s - padded.steps[0].start_s > packed.steps[0].trained_s - packed.steps[0].start_s


def test_a_record_has_a_span_for_every_sample_and_load(job_of: JobOf) -> None:
    for mode in ("policy", "fast"):
        result = simulate(job_of(), mode=mode, record=True)  # type: ignore[arg-type]
        assert len(result.spans) == result.counts.samples
        assert set(result.spans[:, 3].tolist()) == set(range(32))
        assert (result.spans[:, 2] > result.spans[:, 1]).all()
        assert len(result.loads) >= 2 * (len(result.steps) - 1)
        assert len(result.queue) == len(result.steps)
    assert len(simulate(job_of()).spans) == 0
    assert result.samples_per_s > 0


def test_a_single_step_has_an_iteration_time(job_of: JobOf) -> None:
    result = simulate(job_of(num_prompts=4))
    assert result.iteration_s == result.makespan_s


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_replicas": 0}, "replicas 0"),
        ({"lengths": np.ones((32, 2), np.int32)}, r"shape \(32, 2\)"),
        ({"lengths": np.zeros((32, 3), np.int32)}, "1 token or more"),
        ({"prompt_tokens": np.ones(3, np.int32)}, "same number"),
        ({"costs": [CostModel()]}, "1 cost models for 2"),
        ({"lengths": np.ones((40, 3), np.int32), "prompt_tokens": np.ones(40, np.int32)}, "32 tickets and lengths 40"),
    ],
)
def test_a_job_that_cannot_be_simulated_is_refused(fields: dict[str, Any], message: str, job_of: JobOf) -> None:
    with pytest.raises(UserError, match=message):
        job_of(**fields)
