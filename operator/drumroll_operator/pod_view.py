"""Raw pod to PodView: reads the few fields that decisions need and drops the rest. Pure; never fails on odd pods.

What is missing or malformed reads as absent. A pod whose labels are not those of a job's pod has no role.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from drumroll_operator import labels
from drumroll_operator.cluster import Raw
from drumroll_operator.manifests import GPU
from drumroll_operator.observed import Exit, PodPhase, PodView
from drumroll_operator.substrate import ROLES, Role

_PHASES = {phase.value: phase for phase in PodPhase}
_JOB_VOLUME = "drumroll-job"
"""Volume of a job's pods that holds job.json."""


def pod_view(raw: Raw) -> PodView:
    """The view of one pod."""
    metadata, spec, status = _map(raw, "metadata"), _map(raw, "spec"), _map(raw, "status")
    marks = _map(metadata, "labels")
    role = marks.get(labels.ROLE)
    known = cast(Role, role) if role in ROLES else None
    conditions = {condition.get("type"): condition for condition in _maps(status, "conditions")}
    scheduled = conditions.get("PodScheduled", {})
    disruption = conditions.get("DisruptionTarget", {})
    disrupted = disruption.get("status") == "True"
    started, waiting = _started(status, known), _waiting(status)
    return PodView(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        job_uid=_job_uid(metadata, marks),
        role=known,
        index=_whole(marks.get(labels.INDEX)),
        set_number=_whole(marks.get(labels.SET)),
        phase=_PHASES.get(str(status.get("phase", "")), PodPhase.PENDING),
        ready=conditions.get("Ready", {}).get("status") == "True",
        created=seconds(metadata.get("creationTimestamp")) or 0.0,
        started=started,
        delete_by=seconds(metadata.get("deletionTimestamp")),
        node=str(spec.get("nodeName", "")),
        bound_at=seconds(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        gpus=sum(_whole(_limits(container).get(GPU)) for container in _maps(spec, "containers")),
        memory_limit=str(_limits(_main(spec, "containers", known)).get("memory", "")),
        config=_config(spec),
        unschedulable=_unschedulable(scheduled),
        waiting=str(waiting.get("reason", "")),
        waiting_message=str(waiting.get("message", "")),
        exit=_exit(status, known),
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
        disruption=str(disruption.get("reason", "")) if disrupted else "",
        disruption_message=str(disruption.get("message", "")) if disrupted else "",
    )


def seconds(time: object) -> float | None:
    """Unix seconds of an RFC 3339 time; None where it is none."""
    if not isinstance(time, str):
        return None
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None


def _map(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}


def _maps(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = holder.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 0


def _job_uid(metadata: Mapping[str, Any], marks: Mapping[str, Any]) -> str:
    """The label's, if the controller agrees."""
    owners = [owner.get("uid") for owner in _maps(metadata, "ownerReferences") if owner.get("controller")]
    uid = str(marks.get(labels.UID, ""))
    return uid if owners == [uid] else ""


def _main(holder: Mapping[str, Any], key: str, role: Role | None) -> Mapping[str, Any]:
    """The container, or its status, that is named after the role."""
    return next((item for item in _maps(holder, key) if item.get("name") == role), {})


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return _map(_map(container, "resources"), "limits")


def _config(spec: Mapping[str, Any]) -> str:
    job = next((volume for volume in _maps(spec, "volumes") if volume.get("name") == _JOB_VOLUME), {})
    return str(_map(job, "configMap").get("name", ""))


def _unschedulable(scheduled: Mapping[str, Any]) -> str:
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message", "")) or "no reason is given"
    return ""


def _started(status: Mapping[str, Any], role: Role | None) -> float | None:
    state = _map(_main(status, "containerStatuses", role), "state")
    begun = _map(state, "running") or _map(state, "terminated")
    return seconds(begun.get("startedAt"))


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a container waits for; that of an init container says more than the PodInitializing of the others."""
    found = [
        _map(_map(container, "state"), "waiting")
        for key in ("initContainerStatuses", "containerStatuses")
        for container in _maps(status, key)
    ]
    return next((w for w in found if w.get("reason")), {})


def _exit(status: Mapping[str, Any], role: Role | None) -> Exit | None:
    main = _map(_map(_main(status, "containerStatuses", role), "state"), "terminated")
    failed = [
        end
        for container in _maps(status, "initContainerStatuses")
        if (end := _map(_map(container, "state"), "terminated")) and end.get("exitCode")
    ]
    end = failed[0] if failed else main
    code = end.get("exitCode")
    if not isinstance(code, int):
        return None
    return Exit(code, str(end.get("reason", "")), str(end.get("message", "")), seconds(end.get("finishedAt")) or 0.0)
