"""How steps are formed and versions published, over whole jobs."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from drumroll_planner import records as r

MakeJob = Callable[..., Any]


def decided(job: Any) -> list[r.Decided]:
    return list(job.read().decisions())


def test_versions_are_published_every_third_step_and_at_the_end(make_job: MakeJob) -> None:
    job = make_job(steps=8, maxPolicyLag=2, weights={"publishEverySteps": 3}).start()
    job.complete()
    announced = [record for record in job.read().records if isinstance(record, r.Announced)]
    assert [record.version for record in announced] == [0, 3, 6, 8]
    lags = [step.version - sample.oldest_version for step in decided(job) for t in step.tickets for sample in t.samples]
    assert max(lags) <= 2
    sampled = {sample.oldest_version for step in decided(job) for t in step.tickets for sample in t.samples}
    assert sampled <= {0, 3, 6}
    assert "all equal" in job.replay()[1]


def test_a_data_set_smaller_than_a_step_is_passed_over_until_the_last_step_is_short(make_job: MakeJob) -> None:
    job = make_job(prompts=3, steps=None, epochs=3, algorithm={"promptsPerStep": 4}).start()
    job.complete()
    assert [len(step.tickets) for step in decided(job)] == [4, 4, 1]
    rows = Counter(ticket.row for step in decided(job) for ticket in step.tickets)
    assert rows == {0: 3, 1: 3, 2: 3}
    warning = "data.train has 3 prompts, fewer than promptsPerStep (4)"
    assert [n for n in job.read().records if isinstance(n, r.Noted) and warning in n.message]
    assert warning in job.log("scheduler")
    ends = Counter(record.end for record in job.read().records if isinstance(record, r.Ended) for _ in record.tickets)
    assert ends == {r.TicketEnd.COVERED: 9}


UNEVEN = {"engine": {"replay": {"medianTokens": 6, "sigma": 1.2, "stepSeconds": 0.05}}}
"""Answers of 1 to 24 tokens: some take as long as several steps."""


def test_under_drop_tickets_that_are_too_late_end_and_no_token_over_the_bound_is_trained(make_job: MakeJob) -> None:
    job = make_job(steps=12, maxPolicyLag=1, lagPolicy="drop", rollout=UNEVEN).start()
    job.complete()
    steps = decided(job)
    assert [len(step.tickets) for step in steps] == [2] * 12
    lags = [step.version - sample.oldest_version for step in steps for t in step.tickets for sample in t.samples]
    assert max(lags) <= 1


def test_under_mask_the_trainer_goes_on_and_tokens_over_the_bound_are_masked(make_job: MakeJob) -> None:
    job = make_job(steps=12, maxPolicyLag=1, lagPolicy="mask", rollout=UNEVEN).start()
    job.complete()
    steps = decided(job)
    assert [step.mask_below for step in steps] == [max(0, step.version - 1) for step in steps]
    late = {
        step.step
        for step in steps
        for t in step.tickets
        for sample in t.samples
        if sample.oldest_version < step.mask_below
    }
    masked = {row["step"] for row in job.metrics if row.get("tokens/masked", 0) > 0}
    assert late == masked, (late, masked, job.metrics[-1])
    assert "all equal" in job.replay()[1]


def test_a_stream_that_fills_up_asks_for_checkpoints_and_holds_admission(make_job: MakeJob) -> None:
    job = make_job(
        steps=40, prompts=60, trainer={"checkpoint": {"everySteps": 1000}}, stream={"embedded": {"maxBytes": "96Ki"}}
    ).start()
    job.complete()
    covered = [record.step for record in job.read().records if isinstance(record, r.Covered)]
    assert len(covered) > 1, "no checkpoint but the last"
    assert max(row["queue_stream_bytes"] for row in job.metrics) <= 0.95 * 96 * 1024
