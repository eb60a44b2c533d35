"""Store and scheduler are lost together: the ledger is made again from checkpoint, archive and the trainer's words."""

import os
import shutil
import signal
from collections.abc import Callable
from typing import Any

MakeJob = Callable[..., Any]


def test_a_ledger_that_fell_behind_by_more_than_the_bound_is_caught_up_x4(make_job: MakeJob) -> None:
    job = make_job(steps=14, maxPolicyLag=1, trainer={"checkpoint": {"everySteps": 6}}).start()
    job.wait_for_steps(9)
    pids = [job.kill(name, signal.SIGSTOP) for name in ("scheduler", "store")]
    shutil.rmtree(job.job_dir / "store")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    job.complete()
    assert "StreamLost" in job.notes
    assert "DecisionAdopted" in job.notes
    assert job.steps == 14
