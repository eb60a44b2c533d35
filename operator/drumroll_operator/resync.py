"""A look at all jobs once a minute: heals what the watch of the jobs has missed, and tells a watch that is dead.

A job whose newest version the list shows and the watch does not bring within a while means that the watch is alive in
name only. Every job is also planned again from time to time, whatever happens.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from drumroll.clock import Clock, SystemClock
from drumroll_operator.cluster import RLJOBS, ApiError, Cluster, Raw
from drumroll_operator.job_cache import JobCache
from drumroll_operator.pod_cache import version_of
from drumroll_operator.watch import ObjectName, object_name
from drumroll_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)


class Resync:
    """Compares lists with what the watch brings; `run` must be running."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobCache,
        queue: WorkQueue[ObjectName],
        *,
        namespaces: Sequence[str | None],
        every_s: float = 60.0,
        plan_again_s: float = 120.0,
        clock: Clock | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._queue = queue
        self._namespaces = namespaces
        self._every_s, self._plan_again_s = every_s, plan_again_s
        self._clock = clock or SystemClock()
        self._after = after or (lambda: None)
        self._missed: dict[ObjectName, tuple[int, float]] = {}
        self.failure: ApiError | None = None
        """Why the last list failed; None: it did not."""

    @property
    def missing_s(self) -> float:
        """For how long the watch has owed the oldest news that a list has shown."""
        since = [at for _, at in self._missed.values()]
        return self._clock.monotonic() - min(since) if since else 0.0

    def heard(self, type_: str, raw: Raw) -> None:
        """The watch brings an event."""
        name = object_name(raw)
        missed = self._missed.get(name)
        if missed is not None and (type_ == "DELETED" or version_of(raw) >= missed[0]):
            del self._missed[name]
        if type_ == "DELETED":
            self._jobs.deleted(raw)
        else:
            self._jobs.changed(raw)

    async def run(self) -> None:
        """List and compare until cancelled."""
        while True:
            await asyncio.sleep(self._every_s * (0.8 + 0.4 * random.random()))
            try:
                for namespace in self._namespaces:
                    await self.look(namespace)
                self.failure = None
            except ApiError as error:
                if self.failure is None:
                    logger.warning("the jobs cannot be listed: %s", error)
                self.failure = error
            self._spread()
            self._after()

    async def look(self, namespace: str | None) -> None:
        """One list."""
        present: set[ObjectName] = set()
        version = ""
        async for page in self._cluster.list(RLJOBS, namespace):
            version = page.resource_version
            for raw in page.items:
                name = object_name(raw)
                present.add(name)
                known = self._jobs.get(name)
                if known is None or int(known.version) < version_of(raw):
                    since = self._missed.get(name, (0, self._clock.monotonic()))[1]
                    self._missed[name] = version_of(raw), since
                    self._jobs.changed(raw)
        self._jobs.listed(namespace, present, version)
        for name in [name for name in self._missed if self._jobs.get(name) is None]:
            del self._missed[name]

    def _spread(self) -> None:
        """Plan every job again within the time that is set, evenly."""
        chance = min(1.0, self._every_s / self._plan_again_s)
        for job in self._jobs:
            if random.random() < chance:
                name = job.view.namespace, job.view.name
                self._queue.add(name, random.random() * self._every_s)
