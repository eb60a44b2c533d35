"""A run's directory: made whole or not at all, and private where it must be."""

import json
import os
import stat
from pathlib import Path

import pytest
from drumroll_cli.local import rundir
from drumroll_cli.local.jobfile import read_job

from drumroll.api.spec import RLJob
from drumroll.errors import UserError
from drumroll.job import ResolvedJob

JOB = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: tokens}
spec:
  model: {path: models/tiny}
  data: {train: {path: data/train.jsonl}, maxPromptTokens: 128, maxResponseTokens: 64}
  reward: {type: math}
  env:
    - {name: HUB_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
    - {name: TRACKER_API_KEY, value: sentinel-0123456789}
  rollout: {env: [{name: OTHER_TOKEN, value: sentinel-9876543210}]}
"""


@pytest.fixture
def job(tmp_path: Path) -> RLJob:
    (tmp_path / "job.yaml").write_text(JOB)
    return read_job(tmp_path / "job.yaml")


def resolve(job: RLJob, path: Path, port: int | None = None) -> ResolvedJob:
    return rundir.resolve(job, path, uid="uid-1", source_dir=path.parent, port=port)


def test_names_are_counted_up(job: RLJob, tmp_path: Path) -> None:
    assert rundir.default_path(job, tmp_path) == tmp_path / "tokens"
    for name in ("tokens", "tokens-2"):
        (tmp_path / name).mkdir()
    assert rundir.default_path(job, tmp_path) == tmp_path / "tokens-3"


def test_a_run_directory_can_be_read_again(job: RLJob, tmp_path: Path) -> None:
    made = rundir.create(job, resolve(job, tmp_path / "run"), tmp_path / "run")
    again = rundir.read(tmp_path / "run")
    assert again.job.layout == made.job.layout
    assert again.job.endpoints == made.job.endpoints
    assert read_job(tmp_path / "run" / "source.json") == job


def test_no_value_of_a_variable_is_in_job_json_s6(job: RLJob, tmp_path: Path) -> None:
    made = rundir.create(job, resolve(job, tmp_path / "run"), tmp_path / "run")
    text = (tmp_path / "run" / "job.json").read_text()
    assert "sentinel" not in text
    assert "HUB_TOKEN" not in text
    assert made.job.spec.env == job.spec.env


def test_secrets_are_for_this_user_alone_and_stay(job: RLJob, tmp_path: Path) -> None:
    made = rundir.create(job, resolve(job, tmp_path / "run"), tmp_path / "run")
    files = [*made.job.secrets.token_files.values(), *made.job.secrets.store_password_files.values()]
    before = {name: Path(name).read_text() for name in files}
    assert len(set(before.values())) == len(files) == 7
    assert {stat.S_IMODE(os.stat(name).st_mode) for name in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "run" / "source.json").stat().st_mode) == 0o600
    rundir.create(job, resolve(job, tmp_path / "run"), tmp_path / "run")
    assert {name: Path(name).read_text() for name in files} == before
    everything = (tmp_path / "run" / "job.json").read_text()
    assert not any(secret in everything for secret in before.values())


def test_ports_are_outside_those_of_outgoing_connections() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 <= rundir.free_port() < low for _ in range(20))


def fail_in(path: Path, error: BaseException) -> None:
    with rundir.new(path):
        (path / "data").mkdir()
        raise error


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stop"):
        fail_in(tmp_path / "a" / "b", UserError("stop"))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_start_keeps_the_directory_that_was_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail_in(tmp_path, KeyboardInterrupt())
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_never_removed(tmp_path: Path) -> None:
    with rundir.new(tmp_path / "run"):
        (tmp_path / "run" / "data").mkdir()
        with pytest.raises(UserError, match="another `drumroll run` uses"), rundir.new(tmp_path / "run"):
            pass
        assert (tmp_path / "run" / "data").is_dir()


def test_processes_are_told_and_forgotten(tmp_path: Path) -> None:
    rundir.write_processes(tmp_path, {"store": 12})
    assert json.loads((tmp_path / "processes.json").read_text()) == {"store": 12}
    rundir.write_processes(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
