"""A job with held-out prompts: real replicas and a real trainer, evaluated every other step."""

import json
from collections.abc import Callable
from typing import Any

from drumroll_planner import records as r

EVALUATION = {"path": "train.jsonl", "everySteps": 2, "maxPrompts": 6, "samplesPerPrompt": 2}


def test_weights_are_evaluated_at_the_start_every_other_step_and_at_the_end(make_job: Callable[..., Any]) -> None:
    job = make_job(data={"eval": EVALUATION})
    job.start().complete()
    rounds = [record for record in job.read().records if isinstance(record, r.Evaluated)]
    assert [(one.step, one.version) for one in rounds] == [(step, step) for step in (0, 2, 4, 6)], job.story
    assert (rounds[-1].num_samples, rounds[-1].complete) == (12, True)
    assert 0.0 <= rounds[-1].reward_mean <= 1.0 < rounds[-1].response_length_mean
    rows = [json.loads(line) for line in (job.run_dir / "eval.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert "held-out prompts" in (job.run_dir / "run.svg").read_text()
    samples = [json.loads(line) for line in (job.run_dir / "timeline.jsonl").read_text().splitlines()]
    evaluated = [row for row in samples if row["kind"] == "sample" and row["evaluation"]]
    # Of one version from its first to its last token, however far the trainer has come meanwhile.
    assert {row["newest_version"] - row["version"] for row in evaluated} == {0}
    assert {row["version"] for row in evaluated} <= {0, 2, 4, 6}
