"""Ends that somebody asks for: Ctrl-C, SIGTERM of a replica, the death of `drumroll run` itself."""

import os
import re
import signal
from collections.abc import Callable
from typing import Any

from drumroll.testing import eventually_sync

MakeJob = Callable[..., Any]
SLOW = {"engine": {"replay": {"medianTokens": 20, "sigma": 0.1, "stepSeconds": 0.1}}}
"""Answers of two seconds: some are always half done."""


def lost_tokens(log: str) -> list[int]:
    """What each life of a replica says of itself in its last line."""
    return [int(number) for number in re.findall(r"tokens_lost=(\d+)", log)]


def handed_over(log: str) -> int:
    return sum(int(number) for number in re.findall(r"tokens_handed_over=(\d+)", log))


def test_ctrl_c_drains_and_resume_goes_on_to_the_end(make_job: MakeJob) -> None:
    job = make_job(rollout={**SLOW, "graceSeconds": 1}).start()
    job.wait_for_steps(2)
    job.interrupt()
    assert job.wait() == 1, job.story
    assert f"stopped; go on with: drumroll run --resume {job.run_dir}" in job.output
    assert lost_tokens(job.log("rollout-0")) == [0]
    done = job.steps
    assert 2 <= done < 6
    assert job.start(resume=True).wait() == 0, job.story
    assert job.steps == 6
    assert job.audit()[0] == job.replay()[0] == 0
    assert lost_tokens(job.log("rollout-0")) == [0, 0]
    assert not (job.run_dir / "processes.json").exists()
    for steps in ("5", "9"):
        assert job.start("--steps", steps, resume=True).wait() == 2, job.story
        assert "is complete after 6 steps" in " ".join(job.output.split())
    assert job.steps == 6


def test_sigterm_of_a_replica_loses_no_token(make_job: MakeJob) -> None:
    slow = {"engine": {"replay": {"medianTokens": 20, "sigma": 0.1, "stepSeconds": 0.25}}}
    job = make_job(rollout={**slow, "graceSeconds": 1, "replicas": 2}, steps=3).start()
    # Its first answers take five seconds: they are not done within the grace.
    job.wait_for_leases("rollout-1")
    job.kill("rollout-1", signal.SIGTERM)
    job.complete()
    first, *later = lost_tokens(job.log("rollout-1"))
    assert first == 0, job.log("rollout-1")
    assert later in ([0], []), job.log("rollout-1")
    assert handed_over(job.log("rollout-1")) > 0


def test_a_second_ctrl_c_ends_at_once(make_job: MakeJob) -> None:
    job = make_job(rollout={**SLOW, "graceSeconds": 60, "engine": {"replay": {"stepSeconds": 30.0}}}).start()
    job.wait_for_pid("rollout-0")
    eventually_sync(lambda: "registered as rollout-0" in job.log("rollout-0"), 120.0, "a replica at work")
    job.interrupt()
    eventually_sync(lambda: "stopping" in job.output, 20.0, "the first answer")
    job.interrupt()
    assert job.wait(20.0) == 1, job.story


def test_nothing_outlives_a_killed_runner_and_the_run_can_go_on(make_job: MakeJob) -> None:
    job = make_job(trainer={"processesPerReplica": 2}).start()
    beside = make_job("beside", steps=3).start()
    job.wait_for_steps(1)
    os.kill(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    beside.complete()
    assert job.start(resume=True).wait() == 0, job.story
    assert job.audit()[0] == 0
