"""Whose logs are shown: which pods, which container of each, under which name. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumroll.errors import UserError
from drumroll_cli.cluster.objects import JobView, PodLine, in_order, pod_line

Json = Mapping[str, Any]
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


@dataclass(frozen=True, slots=True)
class Source:
    """One container's log."""

    pod: str
    uid: str
    container: str
    prefix: str
    """Before each line: the pod's name without the job's."""


def sources(pods: Sequence[Json], *, role: str | None, pod: str | None) -> list[Source]:
    """The logs that can be read now, by role and index; pods that have none yet are left out."""
    lines = {line.name: line for line in map(pod_line, pods)}
    raw = {item["metadata"]["name"]: item for item in pods}
    found = []
    for line in in_order(list(lines.values())):
        if (role is None or line.role == role) and (pod is None or pod in (line.name, line.short)):
            container = _container(raw[line.name])
            if container is not None:
                main = container == line.role
                prefix = line.short if main else f"{line.short}/{container}"
                found.append(Source(line.name, line.uid, container, prefix))
    return found


def _container(pod: Json) -> str | None:
    """The container that has something to say: an init container that runs or has failed, else the main one."""
    status = pod.get("status") or {}
    for item in status.get("initContainerStatuses") or []:
        state = item.get("state") or {}
        if "running" in state or (state.get("terminated") or {}).get("exitCode"):
            return str(item["name"])
    for item in status.get("containerStatuses") or []:
        if "waiting" not in (item.get("state") or {}):
            return str(item["name"])
    return None


def nothing_to_show(job: JobView, pods: Sequence[PodLine], *, role: str | None, pod: str | None) -> str:
    """Why there is no log, and where to look instead."""
    if pod is not None and not any(pod in (line.name, line.short) for line in pods):
        return f"{job.name} has no pod {pod}; it has {', '.join(line.short for line in in_order(list(pods))) or 'none'}"
    if role is not None and not any(line.role == role for line in pods):
        return f"{job.name} has no {role} pod now ({job.phase}): drumroll status {job.name}"
    if not pods:
        return f"{job.name} has no pods now ({job.phase}): drumroll status {job.name}"
    return f"no process of {job.name} has started yet: drumroll status {job.name} says what it waits for"


def last_words(job: JobView, *, role: str | None) -> list[str]:
    """What processes said when they last failed, as the job's status keeps it."""
    lines = []
    for item in job.restarts:
        if item.count and (role is None or item.role == role):
            lines.append(
                f"{item.role}: {item.count} failure{'s' if item.count > 1 else ''} charged, last {item.reason}"
            )
            lines += [f"  {line}" for line in item.message.splitlines()]
    return lines


def role_of(text: str | None) -> str | None:
    """A role's name, checked.

    Raises:
        UserError: there is no such role.
    """
    roles = ("scheduler", "store", "trainer", "rollout")
    if text is not None and text not in roles:
        raise UserError(f"--role {text}: write one of {', '.join(roles)}")
    return text
