"""The `drumroll` command beside a job that runs: what it shows is what pods and scheduler say, what it does is done."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from kit.jobs import SLOWLY, ClusterJob
from kit.shell import run

pytestmark = [pytest.mark.cluster_full, pytest.mark.timeout(900)]


def test_a_job_is_led_by_the_command_alone(make_job: Callable[..., ClusterJob], tmp_path: Path) -> None:
    job = make_job(steps=400, rollout={"engine": {"replay": SLOWLY}})
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job.manifest))

    def drumroll(*words: str, check: bool = True, deadline_s: float = 300.0) -> CompletedProcess[str]:
        verb, *rest = words
        command = [sys.executable, "-m", "drumroll_cli.main", verb, "-n", job.place.namespace, *rest]
        env = {**os.environ, **job.place.kube.environment}
        return run(command, env=env, check=check, deadline_s=deadline_s)

    told = drumroll("doctor", "-f", str(file)).stdout
    assert "led by drumroll-operator-" in told
    assert "0 failed" in told
    drumroll("submit", str(file))
    job.wait_for_step(1)

    seen = drumroll("top", "job", "--once").stdout
    replica = next(line for line in seen.splitlines() if line.startswith("rollout-0"))
    assert "/16" in replica, seen
    assert "figures are not shown" not in seen

    logs = drumroll("logs", "job", "--tail", "5").stdout
    assert {line.partition(" |")[0] for line in logs.splitlines()} >= {"scheduler", "store", "trainer-0", "rollout-0"}
    alone = drumroll("logs", "job", "--pod", "rollout-0", "--tail", "1").stdout
    assert alone.count("\n") == 1

    drumroll("scale", "job", "2", "--wait")
    assert {pod["metadata"]["name"] for pod in job.pods("rollout")} == {"job-rollout-0", "job-rollout-1"}

    shown = drumroll("status", "job").stdout
    assert "2/2 ready, 2 wanted" in shown
    assert "job-rollout-1" in shown
    assert f"{job.status['steps']}" in shown

    drumroll("suspend", "job", "--wait")
    assert [pod["metadata"]["labels"]["drumroll.dev/role"] for pod in job.pods()] == ["store"]
    assert "drumroll resume job" in drumroll("status", "job").stdout
    before = job.step
    drumroll("resume", "job", "--wait")
    job.wait_for_step(before + 1)

    refused = drumroll("submit", str(file), "--set", "seed=5", check=False)
    assert refused.returncode == 2
    assert "spec.seed is 0 there and 5 in the file" in refused.stderr
    drumroll("cancel", "job", "--yes", "--wait")
    assert job.pods() == []
