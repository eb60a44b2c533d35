"""A watch of one kind in one place: list, then follow; list again where history is gone. It never ends by itself.

Every object of the place reaches the sink, and so does every disappearance, even one that happened while the connection
was down. Two readings tell how it is: when the server was last heard, and when anything at all last happened here.
"""

import asyncio
import logging
import random
from typing import Protocol

from drumroll.clock import Clock, SystemClock
from drumroll_operator.cluster import ApiError, Cluster, Kind, Raw

logger = logging.getLogger(__name__)

ObjectName = tuple[str, str]
"""Namespace and name."""

_TIMEOUT_S = 300.0
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 30.0
_LOG_EVERY_S = 60.0
_SHORTEST_S = 1.0
"""A watch that the server ends sooner without a word is not begun anew before: something in between may be broken."""


class Sink(Protocol):
    """Who wants to know."""

    def changed(self, raw: Raw) -> None:
        """An object was added or modified, or listed."""
        ...

    def deleted(self, raw: Raw) -> None:
        """An object is gone; its last state."""
        ...

    def listed(self, namespace: str | None, present: set[ObjectName], resource_version: str) -> None:
        """A list is complete: of this place, what is neither `present` nor newer than the list is gone."""
        ...


def object_name(raw: Raw) -> ObjectName:
    """Of any namespaced object."""
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


class Watch:
    """One list and watch."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str | None,
        sink: Sink,
        *,
        labels: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.name = f"{kind.plural} in {namespace}" if namespace is not None else kind.plural
        self._cluster = cluster
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._sink = sink
        self._clock = clock or SystemClock()
        self._version: str | None = None
        self._failures = 0
        self._logged_at = -_LOG_EVERY_S
        self._heard_at = self._active_at = self._clock.monotonic()
        self.synced = asyncio.Event()
        """Set when the first list is complete."""
        self.failure: ApiError | None = None
        """Why it is not connected; None: it is, as far as is known."""

    @property
    def age_s(self) -> float:
        """Seconds since the server was last heard: a list, an event or a bookmark."""
        return self._clock.monotonic() - self._heard_at

    @property
    def idle_s(self) -> float:
        """Seconds since anything happened here, be it a failed attempt: what only a stuck task lets grow."""
        return self._clock.monotonic() - self._active_at

    async def run(self) -> None:
        """List and follow until cancelled."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._follow()
            except ApiError as error:
                await self._after_failure(error)

    async def _list(self) -> None:
        present: set[ObjectName] = set()
        version = ""
        async for page in self._cluster.list(self._kind, self._namespace, labels=self._labels):
            version = page.resource_version
            for raw in page.items:
                present.add(object_name(raw))
                self._sink.changed(raw)
            self._heard()
        self._sink.listed(self._namespace, present, version)
        self._version = version
        self.synced.set()

    async def _follow(self) -> None:
        assert self._version is not None
        timeout_s = _TIMEOUT_S * (0.8 + 0.4 * random.random())
        events = self._cluster.watch(
            self._kind,
            self._namespace,
            resource_version=self._version,
            labels=self._labels,
            timeout_s=timeout_s,
        )
        begun, empty = self._clock.monotonic(), True
        async for event in events:
            empty = False
            self._heard()
            raw = event["object"]
            self._version = raw["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._sink.deleted(raw)
            elif event["type"] != "BOOKMARK":
                self._sink.changed(raw)
        self._heard()
        if empty and self._clock.monotonic() - begun < _SHORTEST_S:
            await asyncio.sleep(_SHORTEST_S)

    def _heard(self) -> None:
        self._failures = 0
        self.failure = None
        self._heard_at = self._active_at = self._clock.monotonic()

    async def _after_failure(self, error: ApiError) -> None:
        self._active_at = self._clock.monotonic()
        if error.code == 410 and self._version is not None:
            logger.info("watch of %s: history is gone, listing again", self.name)
            self._version = None
            return
        self.failure = error
        self._failures += 1
        if self._active_at - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = self._active_at
            logger.warning("watch of %s: %s; trying again", self.name, error)
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(self._failures - 1, 16))
        await asyncio.sleep(max(delay_s * (0.5 + 0.5 * random.random()), error.retry_after_s or 0.0))
