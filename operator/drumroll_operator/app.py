"""The operator as a whole: caches, watches, queue and workers around the reconciler, with their checks and metrics.

The first reconcile starts when all pods are known. Stopping lets the rounds that are under way end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

from drumroll.clock import Clock, SystemClock
from drumroll_operator import labels
from drumroll_operator.acting import Actor, NotLeading
from drumroll_operator.cluster import PODS, ApiError, Cluster
from drumroll_operator.health import Health, LoopLag
from drumroll_operator.job_cache import JobCache
from drumroll_operator.metrics import Metrics, counted
from drumroll_operator.pod_cache import PodCache
from drumroll_operator.progress import Channels, ProgressPoller, channel_to
from drumroll_operator.reconciler import Reconciler
from drumroll_operator.recorder import Recorder
from drumroll_operator.rendering import Renderer
from drumroll_operator.resync import Resync
from drumroll_operator.watch import ObjectName, Watch
from drumroll_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)

WORKERS = 16
_STUCK_S = 120.0
_DEAD_WATCH_S = 200.0
_MISSING_S = 90.0
_LAG_S = 15.0
_LAST_ROUNDS_S = 8.0
_LAST_EVENTS_S = 3.0
_LAST_FOLLOW_S = 5.0

Follow = Callable[[Callable[[str, dict[str, Any]], None]], Awaitable[None]]
"""Brings the events of the jobs until cancelled or stopped."""


class Operator:
    """One operator that may act while `may_act` says so."""

    def __init__(
        self,
        cluster: Cluster,
        renderer: Renderer,
        *,
        namespaces: list[str],
        identity: str,
        may_act: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
        health: Health | None = None,
        channels: Channels = channel_to,
        clock: Clock | None = None,
        workers: int = WORKERS,
        resync_every_s: float = 60.0,
        poll_every_s: float = 2.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._workers = workers
        places: list[str | None] = [*namespaces] or [None]
        self.metrics = metrics or Metrics()
        self.health = health or Health()
        self.queue: WorkQueue[ObjectName] = WorkQueue(clock=self._clock)
        self.jobs = JobCache(self.queue.add)
        self.pods = PodCache(self.queue.add)
        self.poller = ProgressPoller(self.queue.add, channels=channels, clock=self._clock, every_s=poll_every_s)
        self.recorder = Recorder(cluster, identity, clock=self._clock)
        actor = Actor(cluster, self.pods, renderer, self.poller, self.recorder, may_act)
        self.reconciler = Reconciler(self.jobs, actor, clock=self._clock, note=self.metrics.acted)
        self.watches = [
            Watch(cluster, PODS, place, self.pods, labels=labels.JOB, clock=self._clock) for place in places
        ]
        self.resync = Resync(
            cluster,
            self.jobs,
            self.queue,
            namespaces=places,
            every_s=resync_every_s,
            clock=self._clock,
            after=self._forget,
        )
        self._lag = LoopLag(self._clock)
        self._rounds: dict[ObjectName, float] = {}
        self._starts = max(1, workers // 2)
        self._starting = 0
        self._parked: deque[ObjectName] = deque()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._stopping = False
        self._add_checks()
        self._add_gauges()

    @property
    def depth(self) -> int:
        """Jobs that are due and wait for a worker."""
        return self.queue.depth + len(self._parked)

    async def run(self, follow: Follow, *, stop: asyncio.Event, last: asyncio.Event) -> None:
        """Work until `stop` is set, then end in order; `last` is set when `follow` shall end.

        If a part ends by itself, all end and its error is raised.
        """
        parts = [
            *(asyncio.create_task(watch.run(), name=f"watch of {watch.name}") for watch in self.watches),
            *(asyncio.create_task(self._work(), name=f"worker {index}") for index in range(self._workers)),
            *(asyncio.create_task(part) for part in (self.recorder.run(), self.poller.run(), self.resync.run())),
            asyncio.create_task(self._lag.run(), name="loop lag"),
        ]
        following = asyncio.ensure_future(follow(self.resync.heard))
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([*parts, following, stopped], return_when=asyncio.FIRST_COMPLETED)
            ended = [part for part in (*parts, following) if part.done()]
            if not stop.is_set() and ended:
                await ended[0]
                raise RuntimeError("a part of the operator has ended by itself")
            await self._finish()
        finally:
            for part in (*parts, stopped):
                part.cancel()
            await asyncio.gather(*parts, stopped, return_exceptions=True)
            last.set()
            await asyncio.wait([following], timeout=_LAST_FOLLOW_S)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _work(self) -> None:
        for watch in self.watches:
            await watch.synced.wait()
        while not self._stopping:
            name, waited_s = await self.queue.get()
            self.metrics.waited(waited_s)
            if self.jobs.get(name) is None or self.pods.has_any(name):
                await self._turn(name)
            elif self._starting >= self._starts:
                self._parked.append(name)
            else:
                await self._start_jobs(name)

    async def _start_jobs(self, name: ObjectName) -> None:
        """Jobs without pods, which take many writes each, have half of the workers: a thousand new ones must not keep
        those waiting that run."""
        self._starting += 1
        try:
            await self._turn(name)
            while self._parked and not self._stopping:
                await self._turn(self._parked.popleft())
        finally:
            self._starting -= 1

    async def _turn(self, name: ObjectName) -> None:
        begun = perf_counter()
        self._rounds[name] = self._clock.monotonic()
        self._quiet.clear()
        result = "error"
        try:
            result = await self._round(name)
        finally:
            del self._rounds[name]
            if not self._rounds:
                self._quiet.set()
            self.metrics.reconciled(result, perf_counter() - begun)

    async def _round(self, name: ObjectName) -> str:
        """One reconcile, with its outcome for the queue; a defect of ours holds up one job, not all."""
        try:
            requeue_s = await self.reconciler.reconcile(name)
        except ApiError as error:
            logger.warning("%s/%s: %s", *name, error)
            self.queue.failed(name, at_least_s=error.retry_after_s or 0.0)
            return "error"
        except NotLeading as error:
            logger.warning("%s/%s is left alone: %s", *name, error)
            self.queue.failed(name)
            return "not leading"
        except Exception:
            # The outermost edge of a round: one job's odd state must not stop the others.
            logger.exception("%s/%s cannot be reconciled", *name)
            self.queue.failed(name)
            return "defect"
        self.queue.done(name)
        if requeue_s is not None:
            self.queue.add(name, requeue_s)
        return "ok"

    async def _finish(self) -> None:
        """Let rounds under way end, and post what is to be told."""
        self._stopping = True
        try:
            async with asyncio.timeout(_LAST_ROUNDS_S):
                await self._quiet.wait()
            async with asyncio.timeout(_LAST_EVENTS_S):
                await self.recorder.flush()
        except TimeoutError:
            logger.warning("some work was not finished at the end: %s", ", ".join("/".join(n) for n in self._rounds))

    def _forget(self) -> None:
        self.reconciler.keep()
        self.poller.keep({job.view.uid for job in self.jobs})

    def _add_checks(self) -> None:
        health = self.health
        for watch in self.watches:
            health.alive_if(f"watch of {watch.name}", partial(_dead_watch, watch))
            health.ready_if(f"{watch.name}", partial(_failing_watch, watch))
        health.alive_if("watch of rljobs", self._missing)
        health.alive_if("reconcile", self._stuck)
        health.alive_if("event loop", lambda: _if(self._lag.worst_s > _LAG_S, f"{self._lag.worst_s:.0f} s late"))
        health.ready_if("rljobs", lambda: str(self.resync.failure) if self.resync.failure else None)
        health.ready_if("rljobs/status", lambda: _said(self.reconciler.status_failure))

    def _missing(self) -> str | None:
        seconds = self.resync.missing_s
        return _if(seconds > _MISSING_S, f"has not brought what a list showed {seconds:.0f} s ago")

    def _stuck(self) -> str | None:
        if not self._rounds:
            return None
        name, since = min(self._rounds.items(), key=lambda item: item[1])
        seconds = self._clock.monotonic() - since
        return _if(seconds > _STUCK_S, f"{'/'.join(name)} has been worked on for {seconds:.0f} s")

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("queue_depth", "Jobs that are due and wait for a worker.", (), lambda: [((), float(self.depth))])
        gauge("pods", "Pods of jobs that are known.", (), lambda: [((), float(len(self.pods)))])
        gauge(
            "jobs", "Jobs by phase.", ("phase",), lambda: counted(job.view.status.phase or "New" for job in self.jobs)
        )
        gauge(
            "watch_age_seconds",
            "Time since a watch of pods last heard from the API server.",
            ("watch",),
            lambda: [((watch.name,), watch.age_s) for watch in self.watches],
        )
        gauge("watch_missing_seconds", "Time for which kopf owes news.", (), lambda: [((), self.resync.missing_s)])
        gauge("loop_lag_seconds", "Worst of the last minute.", (), lambda: [((), self._lag.worst_s)])
        gauge("scheduler_polls", "Calls to schedulers so far.", (), lambda: [((), float(self.poller.calls))])


def _if(wrong: bool, text: str) -> str | None:
    return text if wrong else None


def _said(error: ApiError | None) -> str | None:
    return str(error) if error is not None else None


def _dead_watch(watch: Watch) -> str | None:
    return _if(watch.idle_s > _DEAD_WATCH_S, f"nothing has happened for {watch.idle_s:.0f} s")


def _failing_watch(watch: Watch) -> str | None:
    if watch.failure is not None:
        return str(watch.failure)
    return _if(not watch.synced.is_set(), "not listed yet")
