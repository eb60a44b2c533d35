"""Waits for a job to get somewhere, telling each change in a line. Polls: a lost connection costs one look."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from drumroll_cli.cluster.answers import ClusterRefusal, ClusterUnreachable
from drumroll_cli.cluster.connection import Cluster
from drumroll_cli.cluster.objects import JobView
from drumroll_cli.cluster.reading import raw_pods, read_job

PERIOD_S = 2.0
PATIENCE_S = 120.0
"""How long the API server may be away while somebody waits."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is waited for."""

    reached: Callable[[JobView | None], bool]
    """Judges the newest look at the job; None: it is gone."""
    uid: str
    """A job of the same name and another uid counts as gone."""


async def wait(cluster: Cluster, name: str, wanted: Wanted, say: Callable[[str], None]) -> JobView | None:
    """The job once it is as wanted; None where it is gone by then.

    Raises:
        ClusterUnreachable: the API server has been away for too long.
    """
    told, answered = "", time.monotonic()
    while True:
        try:
            job = await _look(cluster, name, wanted.uid)
            answered = time.monotonic()
        except ClusterUnreachable:
            if time.monotonic() - answered > PATIENCE_S:
                raise
        else:
            if job is not None and (line := change_line(job)) != told:
                say(line)
                told = line
            if wanted.reached(job) or job is None:
                return job
        await asyncio.sleep(PERIOD_S)


async def _look(cluster: Cluster, name: str, uid: str) -> JobView | None:
    try:
        job = await read_job(cluster, name)
    except ClusterRefusal as error:
        if error.code == 404:
            return None
        raise
    return job if job.uid == uid else None


def change_line(job: JobView) -> str:
    """What is worth a new line when it changes."""
    steps = f"  step {job.step or 0}/{job.steps}" if job.steps else ""
    version = f"  version {job.version}" if job.version is not None else ""
    lag = f"  lag {job.lag.least}/{job.lag.mean:.1f}/{job.lag.most}" if job.lag is not None else ""
    rollout = f"  rollout {job.rollout_ready}/{job.wanted_replicas}"
    why = f"  {job.message}" if job.message and job.phase != "Running" else ""
    return f"{job.name}  {job.phase}{steps}{version}{lag}{rollout}{why}"


async def until_gone(cluster: Cluster, job: JobView, say: Callable[[str], None]) -> None:
    """Return once neither the job nor a pod of it is there."""
    told = -1
    while (left := await _left(cluster, job)) > 0:
        if left != told:
            say(f"{job.name}  {left} object{'s' if left > 1 else ''} left")
            told = left
        await asyncio.sleep(PERIOD_S)
    say(f"{job.name} is gone")


async def _left(cluster: Cluster, job: JobView) -> int:
    found = await _look(cluster.within(job.namespace), job.name, job.uid)
    return (found is not None) + len(await raw_pods(cluster, job))
