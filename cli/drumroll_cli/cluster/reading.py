"""Reads of several objects that verbs share: a job with its pods and Events."""

import asyncio
import time
from typing import Any

from drumroll_cli.cluster.answers import ClusterRefusal
from drumroll_cli.cluster.connection import Cluster
from drumroll_cli.cluster.objects import EventLine, JobView, PodLine, event_line, in_order, job_view, pod_line
from drumroll_cli.cluster.paths import core_path, job_path, jobs_path, pods_of
from drumroll_cli.cluster.portrait import Portrait

Json = dict[str, Any]


async def read_job(cluster: Cluster, name: str) -> JobView:
    """One job of the namespace that is meant."""
    return job_view(await cluster.get(job_path(cluster.namespace, name)))


async def read_jobs(cluster: Cluster, *, everywhere: bool) -> list[JobView]:
    """The jobs of the namespace, or of all, by name."""
    jobs = [job_view(job) for job in await cluster.list(jobs_path(None if everywhere else cluster.namespace))]
    return sorted(jobs, key=lambda job: (job.namespace, job.name))


async def raw_pods(cluster: Cluster, job: JobView) -> list[Json]:
    """The pods of this very job, not of an earlier one of its name."""
    pods = await cluster.list(core_path("pods", job.namespace), labels=pods_of(job.name))
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get("drumroll.dev/uid") in (None, job.uid)]


async def read_portrait(cluster: Cluster, name: str) -> Portrait:
    """A job with everything that one may see of it; what one may not is noted."""
    job = await read_job(cluster, name)
    notes: list[str] = []
    pods, events = await asyncio.gather(_pods(cluster, job, notes), _events(cluster, job, notes))
    return Portrait(job, tuple(pods), tuple(events), time.time(), tuple(notes))


async def _pods(cluster: Cluster, job: JobView, notes: list[str]) -> list[PodLine]:
    try:
        return in_order([pod_line(pod) for pod in await raw_pods(cluster, job)])
    except ClusterRefusal as error:
        notes.append(f"pods are not shown: {error}")
        return []


async def _events(cluster: Cluster, job: JobView, notes: list[str]) -> list[EventLine]:
    path = core_path("events", job.namespace)
    try:
        found = await cluster.list(path, fields=f"involvedObject.kind=RLJob,involvedObject.name={job.name}")
        found += await cluster.list(path, fields="involvedObject.kind=Pod,type=Warning")
    except ClusterRefusal as error:
        notes.append(f"Events are not shown: {error}")
        return []
    lines = [event_line(event) for event in found if _is_about(event, job)]
    return [line for line in lines if line.at >= (job.created or 0.0)]


def _is_about(event: Json, job: JobView) -> bool:
    about = event.get("involvedObject") or {}
    if about.get("kind") == "RLJob":
        return bool(about.get("uid", job.uid) == job.uid)
    name = str(about.get("name", ""))
    return name.startswith(f"{job.name}-") and name[len(job.name) + 1 :].partition("-")[0] in (
        *("store", "scheduler"),
        *("trainer", "rollout"),
    )
