"""What an error of the API server means for a plan: the one place that reads codes, reasons and texts of refusals."""

import re

from drumroll_operator.cluster import ApiError
from drumroll_operator.observed import Failure, FailureKind

_DENIALS = (
    "admission webhook",
    "violates PodSecurity",
    "ValidatingAdmissionPolicy",
    "denied the request",
    "limitranger",
)
_LIMIT_RANGER = re.compile(r"(maximum|minimum) (cpu|memory|storage|\S+) usage per|limit to request ratio")
_NAMESPACE_GONE = re.compile(r'namespaces? "[^"]*" not found')


def kind_of(error: ApiError) -> FailureKind:
    """Classify a refusal of a create, patch or delete."""
    text = error.message
    if error.code in (0, 408, 429) or error.code >= 500 or error.reason in ("ServerTimeout", "Timeout"):
        return FailureKind.UNAVAILABLE
    if error.code == 404:
        return FailureKind.NAMESPACE_TERMINATING if _NAMESPACE_GONE.search(text) else FailureKind.CONFLICT
    if error.code == 409:
        return FailureKind.NAME_TAKEN if error.reason == "AlreadyExists" else FailureKind.CONFLICT
    if error.code == 403:
        return _forbidden(error)
    if error.code == 422 and "Only one reference can have Controller set" in text:
        return FailureKind.NAME_TAKEN
    return FailureKind.DENIED if any(word in text for word in _DENIALS) else FailureKind.INVALID


def _forbidden(error: ApiError) -> FailureKind:
    text = error.message
    if "NamespaceTerminating" in error.causes or "because it is being terminated" in text:
        return FailureKind.NAMESPACE_TERMINATING
    if "exceeded quota" in text or "failed quota" in text:
        return FailureKind.QUOTA
    if any(word in text for word in _DENIALS) or _LIMIT_RANGER.search(text):
        return FailureKind.DENIED
    return FailureKind.FORBIDDEN


def failure_of(key: str, error: ApiError, *, at: float, before: Failure | None) -> Failure:
    """The record of an action's failure; `before`: that of its last try, if it failed too."""
    return Failure(
        key=key,
        kind=kind_of(error),
        verb=error.verb,
        resource=error.resource,
        name=error.name,
        message=error.message,
        at=at,
        count=_count(before),
    )


def refusal(key: str, kind: FailureKind, error: Exception, *, at: float, before: Failure | None) -> Failure:
    """The record of an action that something else than the API server refused: the scheduler, or the renderer."""
    verb, _, name = key.partition(" ")
    resource = "scheduler" if verb == "set" else "manifests"
    return Failure(key, kind, verb, resource, name, str(error), at, _count(before))


def _count(before: Failure | None) -> int:
    return before.count + 1 if before is not None else 1
