"""The Cluster protocol on an API server in memory: the same calls and errors as the real one, in one process."""

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from drumroll_operator.cluster import ApiError, Kind, Page, Raw
from drumroll_operator.memory_api import Happening, MemoryApi

_PAGE = 500


@dataclass(slots=True)
class MemoryCluster:
    """A Cluster. Watches see a change as soon as the event loop gets to them; versions below `oldest` have expired."""

    api: MemoryApi
    oldest: int = 0
    poll_s: float = field(default=0.005)

    async def get(self, kind: Kind, namespace: str, name: str) -> Raw:
        """See Cluster."""
        return self.api.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> AsyncIterator[Page]:
        """See Cluster."""
        found, version = self.api.list_all(kind, namespace, labels), str(self.api.version)
        for raw in found:
            del raw["kind"], raw["apiVersion"]
        for start in range(0, max(len(found), 1), _PAGE):
            yield Page(found[start : start + _PAGE], version)

    async def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, labels: str = "", timeout_s: float = 300.0
    ) -> AsyncIterator[Raw]:
        """See Cluster."""
        self.api.calls.append(("watch", kind.plural, ""))
        if int(resource_version) < self.oldest:
            raise ApiError("too old resource version", verb="watch", resource=kind.plural, code=410, reason="Expired")
        loop = asyncio.get_running_loop()
        until, position = loop.time() + timeout_s, self._position(int(resource_version))
        while loop.time() < until:
            while position < len(self.api.history):
                happening = self.api.history[position]
                position += 1
                if self._matches(happening, kind, namespace, labels):
                    yield {"type": happening.type, "object": copy.deepcopy(happening.object)}
            await asyncio.sleep(self.poll_s)

    async def create(self, manifest: Raw) -> Raw:
        """See Cluster."""
        return self.api.create(manifest)

    async def apply(self, manifest: Raw) -> Raw:
        """See Cluster."""
        return self.api.apply(manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Raw) -> Raw:
        """See Cluster."""
        return self.api.merge(kind, namespace, name, patch)

    async def update(self, manifest: Raw) -> Raw:
        """See Cluster."""
        return self.api.update(manifest)

    async def write_status(self, namespace: str, name: str, status: Raw, *, resource_version: str) -> Raw:
        """See Cluster."""
        return self.api.write_status(namespace, name, status, resource_version=resource_version)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> Raw:
        """See Cluster."""
        return self.api.delete(kind, namespace, name, uid=uid, grace_s=grace_s)

    def _position(self, version: int) -> int:
        history = self.api.history
        return next((i for i, happening in enumerate(history) if happening.version > version), len(history))

    def _matches(self, happening: Happening, kind: Kind, namespace: str | None, labels: str) -> bool:
        raw = happening.object
        if raw["kind"] != kind.name or namespace not in (None, raw["metadata"]["namespace"]):
            return False
        marks = raw["metadata"].get("labels") or {}
        wanted = [part.partition("=") for part in labels.split(",") if part]
        return all(key in marks and (not equals or marks[key] == value) for key, equals, value in wanted)
