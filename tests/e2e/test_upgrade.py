"""The chart of this commit over the chart of an earlier one, with a job that runs."""

import io
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.jobs import SLOWLY, ClusterJob
from kit.session import ROOT, Cluster

pytestmark = [pytest.mark.cluster_full, pytest.mark.alone, pytest.mark.timeout(1200)]
CHART = "deploy/helm/drumroll"


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


@pytest.fixture
def earlier_chart(tmp_path: Path, cluster: Cluster) -> Iterator[Path]:
    """The newest committed chart that differs from the one here."""
    commits = _git("log", "--format=%H", "-n", "50", "--", CHART).decode().split()
    others = [
        c for c in commits if subprocess.run(["git", "-C", str(ROOT), "diff", "--quiet", c, "--", CHART]).returncode
    ]
    if not others:
        pytest.skip("this checkout has no history of the chart")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", others[0], CHART))) as archive:
        archive.extractall(tmp_path, filter="data")
    yield tmp_path / CHART
    cluster.release.install()


def test_an_upgrade_changes_no_pod_of_a_job(
    make_job: Callable[..., ClusterJob], cluster: Cluster, earlier_chart: Path
) -> None:
    cluster.release.install(chart=earlier_chart)
    job = make_job(steps=40, rollout={"engine": {"replay": SLOWLY}}).apply()
    job.wait_for_step(2)
    before = job.uids()
    cluster.release.install()
    cluster.release.wait_until_ready()
    step = job.step
    job.wait(lambda: job.step > step or job.phase == "Complete", "progress is told after the upgrade")
    after = job.uids()
    assert {name: after.get(name) for name in before} == before
    job.complete()
