"""`kill -9` of any one process at a random moment: the job finishes, nothing is lost, repeated or changed."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

PARTS = ("rollout-0", "scheduler", "trainer-0", "store")
STEPS = 6


@pytest.mark.parametrize("seed", range(20))
def test_a_job_finishes_whatever_is_killed(make_job: Callable[..., Any], seed: int) -> None:
    draw = random.Random(seed)
    victim, after, pause = PARTS[seed % 4], draw.randrange(STEPS), draw.uniform(0.0, 0.4)
    job = make_job(seed=seed, maxPolicyLag=draw.choice((0, 1, 2, 4)), lagPolicy=draw.choice(("wait", "drop", "mask")))
    job.start()
    job.wait_for_steps(after)
    job.wait_for_pid(victim)
    time.sleep(pause)  # the random moment; nothing waits for it
    job.kill(victim)
    job.complete()
    assert job.steps == STEPS
    assert f"{victim} ended with signal SIGKILL; starting it again" in job.output
    if victim == "trainer-0":
        code, report = job.replay()
        assert code == 0, report
        assert "6 steps replayed: all equal" in report
