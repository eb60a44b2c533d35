"""Nodes of the cluster in memory: binds pods, starts them, makes them ready, ends them as told, and lets them go."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from drumroll_operator import labels
from drumroll_operator.cluster import PODS, Raw
from drumroll_operator.memory_api import MemoryApi


@dataclass(slots=True)
class MemoryKubelet:
    """One node with room for `room` running pods. Nothing happens but by its calls."""

    api: MemoryApi
    room: int = 1_000
    lost: set[str] = field(default_factory=set)
    """Uids of pods whose node does not answer: they neither change nor go."""
    broken_images: set[str] = field(default_factory=set)
    """Names of pods that never start."""

    def pods(self, namespace: str | None = None) -> list[Raw]:
        """All pods, as stored."""
        return self.api.select(PODS, namespace)

    def tick(self) -> bool:
        """Every pod goes one step on, garbage is collected; False where nothing was to be done."""
        moved = self.api.collect_garbage()
        for pod in self.pods():
            if pod["metadata"]["uid"] not in self.lost:
                moved = self._step(pod) or moved
        return moved

    def _step(self, pod: Raw) -> bool:
        phase, bound = pod["status"].get("phase", "Pending"), "nodeName" in pod["spec"]
        if pod["metadata"].get("deletionTimestamp"):
            self.api.remove(pod)
            return True
        if phase in ("Succeeded", "Failed"):
            return False
        if not bound:
            return self._bind(pod)
        if pod["metadata"]["name"] in self.broken_images:
            waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            return self._set(pod, containerStatuses=[{"name": _role(pod), "state": {"waiting": waiting}}])
        if phase == "Pending":
            state = {"running": {"startedAt": self._time()}}
            return self._set(pod, phase="Running", containerStatuses=[{"name": _role(pod), "state": state}])
        return self._set(pod, conditions=[_condition("PodScheduled"), _condition("Ready")])

    def _bind(self, pod: Raw) -> bool:
        taken = [p for p in self.pods() if "nodeName" in p["spec"] and p["status"].get("phase") not in _ENDED]
        if len(taken) >= self.room:
            no = {
                **_condition("PodScheduled", "False"),
                "reason": "Unschedulable",
                "message": "0/1 nodes are available",
            }
            return self._set(pod, conditions=[no])
        return self._set(pod, node="node-1", conditions=[_condition("PodScheduled")])

    def finish(self, pod: Raw, code: int, *, reason: str = "", message: str = "") -> None:
        """Its main container ends."""
        word = reason or ("Completed" if code == 0 else "Error")
        ended = {"exitCode": code, "reason": word, "message": message, "finishedAt": self._time()}
        self._set(
            pod,
            phase="Succeeded" if code == 0 else "Failed",
            conditions=[_condition("PodScheduled"), _condition("Ready", "False")],
            containerStatuses=[{"name": _role(pod), "state": {"terminated": ended}}],
        )

    def evict(self, pod: Raw) -> None:
        """The kubelet evicts it: the object stays, with phase Failed."""
        self._set(
            pod,
            phase="Failed",
            reason="Evicted",
            message="The node was low on resource: memory.",
            conditions=[_condition("PodScheduled"), _condition("Ready", "False")],
        )

    def unready(self, pod: Raw) -> None:
        """Its readiness probe fails."""
        self._set(pod, conditions=[_condition("PodScheduled"), _condition("Ready", "False")])

    def _set(self, pod: Raw, **changes: Any) -> bool:
        before = self.api.version
        self.api.set_status(pod, **changes)
        return self.api.version != before

    def _time(self) -> str:
        return datetime.fromtimestamp(int(self.api.clock.wall()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_ENDED = ("Succeeded", "Failed")


def _condition(type_: str, status: str = "True") -> Raw:
    return {"type": type_, "status": status}


def _role(pod: Raw) -> str:
    return str(pod["metadata"].get("labels", {}).get(labels.ROLE, "main"))
