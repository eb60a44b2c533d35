"""Names, labels and owners of a job's objects. Names follow from the job's name alone: two operators make the same.

Selectors use the labels of `selector` alone, which never change while a job lives.
"""

from typing import Any

from drumroll.job import ResolvedJob
from drumroll_operator.substrate import Role

JOB = "drumroll.dev/job"
UID = "drumroll.dev/uid"
ROLE = "drumroll.dev/role"
INDEX = "drumroll.dev/index"
SET = "drumroll.dev/set"
OWN_PREFIXES = ("drumroll.dev/", "app.kubernetes.io/")
"""Labels that nobody else may set on a job's pods."""


def part_name(role: Role, index: int = 0) -> str:
    """A pod's part of the job, and its DRUMROLL_REPLICA: store, scheduler, trainer-0, rollout-7."""
    return f"{role}-{index}" if role in ("rollout", "trainer") else role


def pod_name(job_name: str, role: Role, index: int = 0) -> str:
    """Name of a pod."""
    return f"{job_name}-{part_name(role, index)}"


def secret_name(job: ResolvedJob, role: str) -> str:
    """Secret with a role's tokens and passwords; a name that a user's own Secret will hardly have."""
    return f"{job.name}-{role}-secrets"


def selector(job: ResolvedJob, *roles: Role) -> dict[str, Any]:
    """A LabelSelector of all the job's pods, or of those of some roles."""
    if len(roles) == 1:
        return {"matchLabels": {JOB: job.name, UID: job.uid, ROLE: roles[0]}}
    chosen: dict[str, Any] = {"matchLabels": {JOB: job.name, UID: job.uid}}
    if roles:
        chosen["matchExpressions"] = [{"key": ROLE, "operator": "In", "values": sorted(roles)}]
    return chosen


def labels(job: ResolvedJob, component: str) -> dict[str, str]:
    """Labels of any object of the job."""
    return {
        "app.kubernetes.io/name": "drumroll",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "drumroll",
        "app.kubernetes.io/managed-by": "drumroll-operator",
        JOB: job.name,
        UID: job.uid,
    }


def owner(job: ResolvedJob) -> dict[str, Any]:
    """The reference by which the garbage collector takes an object away with its job."""
    return {
        "apiVersion": "drumroll.dev/v1alpha1",
        "kind": "RLJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(job: ResolvedJob, name: str, component: str, **extra: str) -> dict[str, Any]:
    """Metadata of an object of the job; `extra` are further labels, `role="rollout"` for drumroll.dev/role."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels(job, component) | {f"drumroll.dev/{key}": value for key, value in extra.items()},
        "ownerReferences": [owner(job)],
    }
