"""Raw objects as what `drumroll doctor` needs of them. Pure."""

from collections.abc import Mapping
from typing import Any

from drumroll_cli.cluster.findings import ClaimSeen, NodeSeen, OperatorSeen, Unseen
from drumroll_cli.cluster.objects import parse_time

Json = Mapping[str, Any]
GPU = "nvidia.com/gpu"
_KEEP_AWAY = ("NoSchedule", "NoExecute")
_OWN_TAINTS = "node.kubernetes.io/"
"""Taints by which Kubernetes itself says that a node is not ready."""


def field_paths(schema: Json, path: str) -> frozenset[str]:
    """Paths of all fields of a schema, below lists as well."""
    found: set[str] = set()
    items = schema.get("items")
    if isinstance(items, Mapping):
        return field_paths(items, f"{path}[]")
    for name, inner in (schema.get("properties") or {}).items():
        found |= {f"{path}.{name}"} | field_paths(inner, f"{path}.{name}")
    return frozenset(found)


def node(item: Json) -> NodeSeen:
    """A node."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
    taints = [(taint["key"], taint["effect"]) for taint in spec.get("taints") or [] if taint["effect"] in _KEEP_AWAY]
    return NodeSeen(
        name=item["metadata"]["name"],
        usable=ready and not spec.get("unschedulable", False),
        gpus=int((status.get("allocatable") or {}).get(GPU, 0)),
        taints=tuple(taint for taint in taints if not taint[0].startswith(_OWN_TAINTS)),
    )


def gpus_of(pod: Json) -> int:
    """GPUs that a pod on a node holds."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName"):
        return 0
    return sum(
        int(((box.get("resources") or {}).get("limits") or {}).get(GPU, 0)) for box in spec.get("containers", [])
    )


def claim(item: Json) -> ClaimSeen:
    """A claim."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    return ClaimSeen(
        name=item["metadata"]["name"],
        phase=status.get("phase", "Pending"),
        modes=tuple(status.get("accessModes") or spec.get("accessModes") or ()),
        storage_class=spec.get("storageClassName", ""),
        capacity=(status.get("capacity") or {}).get("storage", ""),
    )


def labels_of(space: Json | Unseen) -> Mapping[str, str] | Unseen | None:
    """Labels of a namespace; None: it does not exist."""
    if isinstance(space, Unseen):
        return None if space.why.startswith("there is no namespace") else space
    labels: Mapping[str, str] = space["metadata"].get("labels") or {}
    return labels


def is_terminating(space: Json | Unseen) -> bool:
    """Whether a namespace is being deleted."""
    return not isinstance(space, Unseen) and (space.get("status") or {}).get("phase") == "Terminating"


def jobs_seen(jobs: list[dict[str, Any]] | Unseen) -> bool | None:
    """Whether an operator has looked at one of these jobs."""
    if isinstance(jobs, Unseen) or not jobs:
        return None
    return any((job.get("status") or {}).get("observedGeneration") for job in jobs)


def is_operator(deployment: Json) -> bool:
    """Whether it is the chart's operator, and not another part."""
    labels = deployment["spec"]["template"]["metadata"].get("labels") or {}
    return bool(labels.get("app.kubernetes.io/component") == "operator")


def holder(lease: Json | None, now: float) -> str:
    """Who leads; empty where nobody has renewed the Lease for twice its duration."""
    spec = (lease or {}).get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    if not spec.get("holderIdentity") or renewed is None:
        return ""
    return str(spec["holderIdentity"]) if now - renewed < 2 * float(spec.get("leaseDurationSeconds", 15)) else ""


def operator(deployment: Json, leader: str, settings: Json) -> OperatorSeen:
    """An installation."""
    meta = deployment["metadata"]
    return OperatorSeen(
        namespace=meta["namespace"],
        name=meta["name"],
        version=(meta.get("labels") or {}).get("app.kubernetes.io/version", ""),
        wanted=deployment["spec"].get("replicas", 1),
        available=(deployment.get("status") or {}).get("availableReplicas", 0),
        holder=leader,
        settings=settings,
    )
