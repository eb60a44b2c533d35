"""`kill -9` of a process of a job that generates with vLLM, at a random moment: the job finishes and loses nothing."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

STEPS = 5


@pytest.mark.vllm
@pytest.mark.parametrize("victim", ["rollout-0", "trainer-0", "scheduler"])
def test_a_job_with_vllm_finishes_whatever_is_killed(make_job: Callable[..., Any], victim: str) -> None:
    draw = random.Random(victim)
    job = make_job(
        steps=STEPS,
        maxPolicyLag=2,
        algorithm={"groupSize": 4, "promptsPerStep": 4},
        scheduler={"leaseSeconds": 30},
        rollout={"maxConcurrentSamples": 8, "engine": {"type": "vllm", "kvCacheMemory": "64Mi", "replay": None}},
    )
    job.start()
    job.wait_for_steps(draw.randrange(1, STEPS - 1))
    time.sleep(draw.uniform(0.0, 0.3))  # the random moment; nothing waits for it
    job.kill(victim)
    job.complete()
    assert job.steps == STEPS
    assert f"{victim} ended with signal SIGKILL; starting it again" in job.output
    assert job.replay()[0] == 0
