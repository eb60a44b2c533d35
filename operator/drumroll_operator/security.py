"""What the *restricted* Pod Security profile asks for, and a little more: read-only root, no token, one user for all.

All pods of a job have the same user and group, since they write to one volume.
"""

from typing import Any

from drumroll.api.spec import RLJobSpec
from drumroll_operator.settings import OperatorSettings


def pod_security(spec: RLJobSpec, settings: OperatorSettings) -> dict[str, Any]:
    """securityContext of a pod: the job's user and groups, else the operator's, else the platform's."""
    own, default = spec.security_context, settings.pod_security
    context: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for key, value in (
        ("runAsUser", _first(own.run_as_user, default.run_as_user)),
        ("runAsGroup", _first(own.run_as_group, default.run_as_group)),
        ("fsGroup", _first(own.fs_group, default.fs_group)),
    ):
        if value is not None:
            context[key] = value
    if "fsGroup" in context:
        # Weights are many files: their group is not to be set again at every start.
        context["fsGroupChangePolicy"] = "OnRootMismatch"
    if own.supplemental_groups:
        context["supplementalGroups"] = sorted(set(own.supplemental_groups))
    return context


def container_security() -> dict[str, Any]:
    """securityContext of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def _first(own: int | None, default: int | None) -> int | None:
    return default if own is None else own
