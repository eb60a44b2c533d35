"""Events about jobs (events.k8s.io/v1): what happens again within ten minutes becomes one Event with a count.

Recording never fails and never waits: Events are posted by a task of their own. Without the right to post them they are
logged once and jobs run on.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from drumroll.clock import Clock, SystemClock
from drumroll_operator.actions import Record
from drumroll_operator.cluster import EVENTS, RLJOBS, ApiError, Cluster, Raw
from drumroll_operator.observed import JobView
from drumroll_operator.texts import event_note

logger = logging.getLogger(__name__)

CONTROLLER = "drumroll.dev/operator"
SERIES_S = 600.0
"""An Event that comes again within this time is counted, not posted anew."""
_POST_EVERY_S = 30.0
"""A count is posted no more often than this."""
_REMEMBERED = 4096
_WAITING = 1000

_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Series:
    namespace: str
    name: str
    last_at: float
    count: int = 1
    posted_at: float = 0.0
    posted_count: int = 0


class Recorder:
    """Posts Events; `run` must be running for that."""

    def __init__(self, cluster: Cluster, instance: str, *, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._instance = instance[:128]
        self._clock = clock or SystemClock()
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._waiting: asyncio.Queue[tuple[_Series, Raw | None]] = asyncio.Queue(_WAITING)
        self._refused = False

    def record(self, job: JobView, event: Record) -> None:
        """Note that something happened."""
        note = event_note(event.message) or event.reason
        logger.info("%s/%s: %s: %s", job.namespace, job.name, event.reason, note)
        now = self._clock.wall()
        key = (job.uid, event.reason, note)
        series = self._series.get(key)
        if series is not None and now - series.last_at <= SERIES_S:
            series.count, series.last_at = series.count + 1, now
            self._series.move_to_end(key)
            if now - series.posted_at >= _POST_EVERY_S:
                series.posted_at = now
                self._put(series, None)
            return
        self._start(key, job, event.type, note, now)

    def _start(self, key: _Key, job: JobView, type_: str, note: str, now: float) -> None:
        digest = hashlib.sha256("\0".join((*key, f"{now:.6f}")).encode()).hexdigest()[:16]
        series = _Series(job.namespace, f"{job.name}.{digest}", now, posted_at=now)
        self._series[key] = series
        if len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)
        about = {
            "apiVersion": RLJOBS.api_version,
            "kind": RLJOBS.name,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        }
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.name,
            "metadata": {"namespace": job.namespace, "name": series.name},
            "eventTime": _micro_time(now),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "reason": key[1],
            "regarding": about,
            "note": note,
            "type": type_,
        }
        self._put(series, event)

    def _put(self, series: _Series, event: Raw | None) -> None:
        try:
            self._waiting.put_nowait((series, event))
        except asyncio.QueueFull:
            logger.warning("too many Events wait: one about %s is dropped", series.name)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            series, event = await self._waiting.get()
            try:
                await self._post(series, event)
            except ApiError as error:
                self._after_refusal(series, event, error)

    async def flush(self) -> None:
        """Post what waits, for an orderly end."""
        while not self._waiting.empty():
            series, event = self._waiting.get_nowait()
            try:
                await self._post(series, event)
            except ApiError as error:
                logger.debug("an Event is lost at the end: %s", error)

    async def _post(self, series: _Series, event: Raw | None) -> None:
        if event is not None:
            await self._cluster.create(event)
            series.posted_count = 1
        elif series.count > series.posted_count:
            count, last = series.count, _micro_time(series.last_at)
            change = {"series": {"count": count, "lastObservedTime": last}}
            await self._cluster.merge(EVENTS, series.namespace, series.name, change)
            series.posted_count = count

    def _after_refusal(self, series: _Series, event: Raw | None, error: ApiError) -> None:
        if error.code == 404 or "NamespaceTerminating" in error.causes:
            return
        if error.code == 403:
            if not self._refused:
                self._refused = True
                logger.warning("Events cannot be posted, jobs run on without them: %s", error)
            return
        logger.info("an Event about %s is lost: %s", series.name, error)


def _micro_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
