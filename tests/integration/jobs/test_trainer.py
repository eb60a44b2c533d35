"""The trainer of a whole job: replaced, killed between checkpoints, stopped beside a successor."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drumroll_planner import records as r

from drumroll.errors import EXIT_FENCED
from drumroll.testing import eventually_sync

MakeJob = Callable[..., Any]


@pytest.fixture
def second_trainer() -> Iterator[Callable[[Any], "subprocess.Popen[bytes]"]]:
    """Starts another trainer for a running job, by hand."""
    started: list[subprocess.Popen[bytes]] = []

    def start(job: Any) -> "subprocess.Popen[bytes]":
        with (job.folder / "second.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "drumroll_trainer"],
                    cwd=job.folder,
                    env={
                        **os.environ,
                        "DRUMROLL_JOB": str(job.run_dir / "job.json"),
                        "DRUMROLL_ROLE": "trainer",
                        "DRUMROLL_REPLICA": "trainer-0",
                        "OMP_NUM_THREADS": "1",
                    },
                    stdout=log,
                    stderr=log,
                )
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_stopped_trainer_that_wakes_up_beside_its_successor_is_fenced(
    make_job: MakeJob, second_trainer: Callable[[Any], "subprocess.Popen[bytes]"]
) -> None:
    job = make_job(steps=8).start()
    job.wait_for_steps(3)
    old = job.kill("trainer-0", signal.SIGSTOP)
    successor = second_trainer(job)
    eventually_sync(
        lambda: "registered at step" in (job.folder / "second.log").read_text(), 120.0, "a successor that works"
    )
    os.kill(old, signal.SIGCONT)
    job.complete()
    assert successor.wait(60) == 0
    assert "trainer-0 was replaced by a successor" in job.output
    assert " WARNING trainer-0 drumroll_trainer: replaced: " in job.log("trainer-0")
    assert EXIT_FENCED == 75
    assert "all equal" in job.replay()[1]


def synchronous(make_job: MakeJob, name: str) -> Any:
    return make_job(
        name,
        steps=5,
        maxPolicyLag=0,
        trainer={"checkpoint": {"everySteps": 2}},
        rollout={"engine": {"replay": {"stepSeconds": 0.03}}},
    ).start()


def test_a_synchronous_job_ends_with_the_same_weights_whether_killed_or_not(make_job: MakeJob) -> None:
    killed, quiet = synchronous(make_job, "killed"), synchronous(make_job, "quiet")
    killed.wait_for_steps(3)
    killed.kill("trainer-0")
    killed.complete()
    quiet.complete()
    assert "registered at step 2" in killed.log("trainer-0")
    assert not [record for record in killed.read().records if isinstance(record, r.ReplayDiverged)]
    assert weights(killed) == weights(quiet)
    assert sequence(killed) == sequence(quiet)
    assert killed.replay()[0] == quiet.replay()[0] == 0


def weights(job: Any) -> bytes:
    """The tensors of the last version; its manifest names the job, so that it differs."""
    return Path(job.job_dir / "weights" / "weight_v000005" / "model.safetensors").read_bytes()


def sequence(job: Any) -> list[tuple[int, int, frozenset[Any]]]:
    """Step, version, set of tickets."""
    decided = job.read().decisions()
    return [(d.step, d.version, frozenset(t.ticket for t in d.tickets)) for d in decided]
