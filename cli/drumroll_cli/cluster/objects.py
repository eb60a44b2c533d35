"""Raw objects of a cluster as small values that the verbs show. Pure and lenient: what a newer operator adds is
ignored, what an older one leaves out is None."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Json = Mapping[str, Any]
TERMINAL = ("Complete", "Failed")


def parse_time(stamp: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time."""
    if not stamp:
        return None
    # Python reads at most microseconds.
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp)).timestamp()


def span(seconds: float) -> str:
    """A duration as kubectl shows ages: 45s, 12m, 3h10m, 2d4h."""
    total = max(0, round(seconds))
    if total < 120:
        return f"{total}s"
    if total < 7_200:
        return f"{total // 60}m"
    if total < 172_800:
        return f"{total // 3600}h{total % 3600 // 60}m"
    return f"{total // 86_400}d{total % 86_400 // 3600}h"


def age(stamp: float | None, now: float) -> str:
    """Time since a moment; a hyphen where it is unknown."""
    return "-" if stamp is None else span(now - stamp)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a job."""

    type: str
    status: str
    reason: str
    message: str
    since: float | None


@dataclass(frozen=True, slots=True)
class Restarts:
    """What a role's restart budget holds."""

    role: str
    count: int
    reason: str
    message: str
    at: float | None


@dataclass(frozen=True, slots=True)
class Lag:
    """Policy lag of the newest step, in versions."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class JobView:
    """An RLJob as people look at it."""

    name: str
    namespace: str
    uid: str
    phase: str
    """Pending until the operator has said another."""
    message: str
    created: float | None
    started: float | None
    ended: float | None
    deleting: bool
    seen: bool
    """Whether the operator has looked at the newest spec."""
    suspend: bool
    step: int | None
    steps: int | None
    version: int | None
    lag: Lag | None
    max_lag: int | None
    samples: int | None
    eta_s: float | None
    gpus: int | None
    model: str
    job_dir: str
    wanted_replicas: int
    rollout_replicas: int
    rollout_ready: int
    rollout_draining: int
    trainer_replicas: int
    trainer_ready: int
    conditions: tuple[Condition, ...]
    restarts: tuple[Restarts, ...]

    @property
    def ended_for_good(self) -> bool:
        """Complete or Failed: it never runs again."""
        return self.phase in TERMINAL

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


def job_view(job: Json) -> JobView:
    """The view of an RLJob as the API server gives it."""
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    lag, rollout, trainer = status.get("policyLag"), status.get("rollout") or {}, status.get("trainer") or {}
    return JobView(
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        uid=meta.get("uid", ""),
        phase=status.get("phase") or "Pending",
        message=status.get("message", ""),
        created=parse_time(meta.get("creationTimestamp")),
        started=parse_time(status.get("startTime")),
        ended=parse_time(status.get("endTime")),
        deleting="deletionTimestamp" in meta,
        seen=status.get("observedGeneration") == meta.get("generation"),
        suspend=bool(spec.get("suspend", False)),
        step=status.get("step"),
        steps=status.get("steps", spec.get("steps")),
        version=status.get("version"),
        lag=Lag(lag.get("min", 0), lag.get("mean", 0.0), lag.get("max", 0)) if lag else None,
        max_lag=spec.get("maxPolicyLag"),
        samples=status.get("samples"),
        eta_s=status.get("etaSeconds"),
        gpus=status.get("gpus"),
        model=(spec.get("model") or {}).get("path", ""),
        job_dir=status.get("jobDir", ""),
        wanted_replicas=(spec.get("rollout") or {}).get("replicas", 1),
        rollout_replicas=rollout.get("replicas", 0),
        rollout_ready=rollout.get("ready", 0),
        rollout_draining=rollout.get("draining", 0),
        trainer_replicas=trainer.get("replicas", 0),
        trainer_ready=trainer.get("ready", 0),
        conditions=tuple(_condition(item) for item in status.get("conditions") or []),
        restarts=tuple(_restarts(item) for item in status.get("restarts") or []),
    )


def _condition(item: Json) -> Condition:
    since = parse_time(item.get("lastTransitionTime"))
    return Condition(
        item["type"], item.get("status", "Unknown"), item.get("reason", ""), item.get("message", ""), since
    )


def _restarts(item: Json) -> Restarts:
    at = parse_time(item.get("lastTime"))
    return Restarts(item["role"], item.get("count", 0), item.get("lastReason", ""), item.get("lastMessage", ""), at)


@dataclass(frozen=True, slots=True)
class PodLine:
    """A job's pod as people look at it."""

    name: str
    uid: str
    role: str
    index: int
    state: str
    """As kubectl's STATUS column."""
    why: str
    """What it waits for or died of; empty where nothing is wrong."""
    ready: bool
    node: str
    gpus: int
    created: float | None
    phase: str

    @property
    def short(self) -> str:
        """Its name without the job's: trainer-0."""
        return f"{self.role}-{self.index}" if self.role in ("trainer", "rollout") else self.role


_ROLES = ("scheduler", "store", "trainer", "rollout")


def pod_line(pod: Json) -> PodLine:
    """The line of a pod as the API server gives it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels = meta.get("labels") or {}
    state, why = _pod_state(pod)
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or [])
    limits = [(box.get("resources") or {}).get("limits") or {} for box in spec.get("containers") or []]
    index = str(labels.get("drumroll.dev/index", "0"))
    return PodLine(
        name=meta["name"],
        uid=meta.get("uid", ""),
        role=labels.get("drumroll.dev/role", ""),
        index=int(index) if index.isdigit() else 0,
        state=state,
        why=why,
        ready=ready,
        node=spec.get("nodeName", ""),
        gpus=sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits),
        created=parse_time(meta.get("creationTimestamp")),
        phase=status.get("phase", ""),
    )


def in_order(pods: list[PodLine]) -> list[PodLine]:
    """By role and index, as people read them."""
    rank = {role: number for number, role in enumerate(_ROLES)}
    return sorted(pods, key=lambda pod: (rank.get(pod.role, len(rank)), pod.index, pod.name))


def _pod_state(pod: Json) -> tuple[str, str]:
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating", ""
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message", ""))
    for prefix, key in (("Init:", "initContainerStatuses"), ("", "containerStatuses")):
        for container in status.get(key) or []:
            if found := _container_state(container, prefix):
                return found
    for item in status.get("conditions") or []:
        if item["type"] == "PodScheduled" and item["status"] == "False":
            return "Unschedulable", str(item.get("message", ""))
    return str(status.get("phase", "Unknown")), ""


def _container_state(container: Json, prefix: str) -> tuple[str, str] | None:
    """What a container says of its pod; None: nothing unusual."""
    state = container.get("state") or {}
    if waiting := state.get("waiting"):
        reason = str(waiting.get("reason", "Waiting"))
        return (prefix + reason, str(waiting.get("message", ""))) if reason != "PodInitializing" else None
    ended = state.get("terminated")
    if ended and (ended.get("exitCode") or not prefix):
        words = str(ended.get("message", "")) or f"exit code {ended.get('exitCode')}"
        return prefix + str(ended.get("reason", "Error")), words if ended.get("exitCode") else ""
    if prefix and "running" in state:
        return f"{prefix}{container.get('name', '')}", ""
    return None


@dataclass(frozen=True, slots=True)
class EventLine:
    """An Event about a job or one of its pods."""

    type: Literal["Normal", "Warning"] | str
    reason: str
    about: str
    note: str
    count: int
    at: float


def event_line(event: Json) -> EventLine:
    """An Event of core/v1 form, which shows those of events.k8s.io too."""
    series, about = event.get("series") or {}, event.get("involvedObject") or {}
    stamps = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    times = [parse_time(stamp) for stamp in (*stamps, event["metadata"].get("creationTimestamp"))]
    return EventLine(
        type=event.get("type", "Normal"),
        reason=event.get("reason", ""),
        about=about.get("name", ""),
        note=event.get("message", ""),
        count=series.get("count") or event.get("count") or 1,
        at=next((time for time in times if time is not None), 0.0),
    )
