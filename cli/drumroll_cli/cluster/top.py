"""`drumroll top`: a live table of jobs, or of one job's processes."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll_cli.cluster.where import Context, Kubeconfig, Namespace, OptionalJob, Where

if TYPE_CHECKING:
    from drumroll_proto.v1.scheduler_pb2 import StatusReply
    from rich.console import RenderableType

    from drumroll_cli.cluster.connection import Cluster
    from drumroll_cli.cluster.fleet import Fleet, Rates


def top(
    job: OptionalJob = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end; so without a terminal.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.5, help="Seconds between two looks.")] = 2.0,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Watch the jobs of a namespace, or one job's pods with their weight versions, leases and token rates.

    What a replica does is the scheduler's word: it is asked inside its pod, for which one needs the right to create
    pods/exec. Without it the pods alone are shown.

    Examples:

    `drumroll top`

    `drumroll top first-light`

    `drumroll top first-light --once`
    """
    from drumroll_cli.cluster.connection import on_cluster

    where = Where(kubeconfig, context, namespace)
    period_s = None if once or not sys.stdout.isatty() else interval
    try:
        on_cluster(where, lambda cluster: _top(cluster, job, period_s, everywhere=everywhere))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _top(cluster: "Cluster", job: str | None, period_s: float | None, *, everywhere: bool) -> None:
    from drumroll_cli.cluster.screen import console

    views = _jobs(cluster, period_s, everywhere=everywhere) if job is None else _fleet(cluster, job, period_s)
    if period_s is None:
        async for view in views:
            console().print(view)
            return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        async for view in views:
            live.update(view, refresh=True)


async def _jobs(cluster: "Cluster", period_s: float | None, *, everywhere: bool) -> "AsyncIterator[RenderableType]":
    from rich.text import Text

    from drumroll_cli.cluster.answers import ClusterUnreachable
    from drumroll_cli.cluster.portrait import jobs_table
    from drumroll_cli.cluster.reading import read_jobs

    while True:
        try:
            jobs = await read_jobs(cluster, everywhere=everywhere)
            yield jobs_table(jobs, time.time(), namespaces=everywhere) if jobs else Text("no RLJobs")
        except ClusterUnreachable as error:
            if period_s is None:
                raise
            yield Text(str(error), style="yellow")
        await asyncio.sleep(period_s or 0.0)


async def _fleet(cluster: "Cluster", name: str, period_s: float | None) -> "AsyncIterator[RenderableType]":
    from rich.text import Text

    from drumroll_cli.cluster.answers import ClusterUnreachable
    from drumroll_cli.cluster.fleet import Rates, fleet

    word, rates = _Word(cluster), Rates()
    try:
        while True:
            try:
                seen = await _look(cluster, name, word, rates, period_s)
                yield fleet(seen)
                if seen.job.ended_for_good:
                    return
            except ClusterUnreachable as error:
                if period_s is None:
                    raise
                yield Text(str(error), style="yellow")
            await asyncio.sleep(period_s or 0.0)
    finally:
        await word.close()


async def _look(cluster: "Cluster", name: str, word: "_Word", rates: "Rates", period_s: float | None) -> "Fleet":
    from drumroll_cli.cluster.fleet import Fleet
    from drumroll_cli.cluster.objects import in_order, pod_line
    from drumroll_cli.cluster.reading import raw_pods, read_job

    job = await read_job(cluster, name)
    pods = in_order([pod_line(pod) for pod in await raw_pods(cluster, job)])
    scheduler = next((pod for pod in pods if pod.role == "scheduler" and pod.phase == "Running"), None)
    if scheduler is not None:
        word.listen(scheduler.name, scheduler.uid, period_s)
        if period_s is None:
            await word.first()
    status = word.newest
    now = time.monotonic()
    return Fleet(job, pods, status, rates.add(status, now) if status is not None else {}, time.time(), word.note)


class _Word:
    """The scheduler's status, read from a process inside its pod; at most one at a time."""

    PATIENCE_S = 15.0

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._of = ""
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self.newest: StatusReply | None = None
        self.note = ""

    def listen(self, pod: str, uid: str, period_s: float | None) -> None:
        """Start to listen, where nobody listens to this pod yet."""
        if self._task is not None and (self._of == uid and not self._task.done()):
            return
        if self._task is not None:
            self._task.cancel()
        self._of = uid
        self._task = asyncio.create_task(self._listen(pod, period_s))

    async def first(self) -> None:
        """Wait until there is a word, or a reason why there is none."""
        try:
            async with asyncio.timeout(self.PATIENCE_S):
                await self._heard.wait()
        except TimeoutError:
            self.note = f"the scheduler's pod has not answered within {self.PATIENCE_S:.0f} s"

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self, pod: str, period_s: float | None) -> None:
        from drumroll_proto.v1 import scheduler_pb2
        from google.protobuf.json_format import Parse

        from drumroll_cli.cluster.answers import ClusterRefusal, ClusterUnreachable
        from drumroll_cli.cluster.paths import core_path

        command = ["python", "-m", "drumroll.status_feed", *([str(period_s)] if period_s is not None else [])]
        path = core_path("pods", self._cluster.namespace, pod)
        try:
            async for line in self._cluster.run(path, "scheduler", command):
                self.newest, self.note = Parse(line, scheduler_pb2.StatusReply(), ignore_unknown_fields=True), ""
                self._heard.set()
        except (ClusterRefusal, ClusterUnreachable) as error:
            self.newest, self.note = None, f"replicas' figures are not shown: {error}"
            self._heard.set()
            await asyncio.sleep(self.PATIENCE_S)  # Then it is tried again.
