"""The store of a running job comes back empty (case X4)."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

MakeJob = Callable[..., Any]


def empty_store(job: Any) -> int:
    """Delete all keys of the job, as FLUSHALL would; their number. No role of a job may FLUSHALL."""
    resolved = job.resolved
    port = int(resolved.endpoints.store.rpartition(":")[2])
    password = Path(resolved.secrets.store_password_files["scheduler"]).read_text()
    keys = [f"drumroll:{{{resolved.uid}}}:{name}" for name in ("samples", "journal", "incarnation", "snapshot")]
    with redis.Redis(port=port, username="scheduler", password=password) as client:
        return int(client.delete(*keys))  # type: ignore[arg-type]


def test_an_emptied_store_is_rebuilt_in_the_middle_of_a_run_x4(make_job: MakeJob) -> None:
    job = make_job(steps=8).start()
    job.wait_for_steps(3)
    assert empty_store(job) >= 2
    job.complete()
    assert "StreamLost" in job.notes
    assert job.steps == 8


def test_a_store_without_its_files_is_rebuilt_x4(make_job: MakeJob) -> None:
    job = make_job(steps=8).start()
    job.wait_for_steps(3)
    pid = job.kill("store", signal.SIGSTOP)
    shutil.rmtree(job.job_dir / "store")
    os.kill(pid, signal.SIGKILL)
    job.complete()
    assert "StreamLost" in job.notes
    assert job.steps == 8
