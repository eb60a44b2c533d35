"""Samples of decided steps are gone from stream and archive: the job rewinds, and says so."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from drumroll_planner import records as r

MakeJob = Callable[..., Any]


def empty_stream(job: Any) -> None:
    """Delete all samples, and nothing of the ledger."""
    resolved = job.resolved
    port = int(resolved.endpoints.store.rpartition(":")[2])
    password = Path(resolved.secrets.store_password_files["scheduler"]).read_text()
    with redis.Redis(port=port, username="scheduler", password=password) as client:
        client.xtrim(f"drumroll:{{{resolved.uid}}}:samples", maxlen=0, approximate=False)


def test_decided_steps_without_samples_are_taken_back_under_a_new_lineage(make_job: MakeJob) -> None:
    job = make_job(steps=9, trainer={"checkpoint": {"everySteps": 4}}).start()
    job.wait_for_steps(6)
    job.kill("trainer-0", signal.SIGSTOP)
    job.kill("trainer-0")
    for archive in job.job_dir.glob("samples/step_*"):
        if archive.name >= "step_000004":
            archive.unlink()
    empty_stream(job)
    job.complete()
    rewinds = [record for record in job.read().records if isinstance(record, r.Rewound)]
    assert rewinds, job.story
    assert "samples of step" in rewinds[0].reason
    assert rewinds[0].step % 4 == 0, "to a checkpoint"
    assert f"back to step {rewinds[0].step}, lineage 1: samples of step" in job.log("scheduler")
    rows = job.metrics
    assert [row["step"] for row in rows] == list(range(9))
    assert rows[-1]["lineage"] == len(rewinds)
    announced = [record.version for record in job.read().records if isinstance(record, r.Announced)]
    assert announced == sorted(set(announced)), "a version was used twice"
    code, report = job.replay()
    assert code == 0, report
