"""What a refused call means: from the API server's error to the kinds of failure that plans know. Pure."""

import re

from drumroll_operator.cluster import ApiError
from drumroll_operator.observed import Failure, FailureKind

_QUOTA = ("exceeded quota", "failed quota")
_LACKS_RIGHT = re.compile(r"\bcannot \S+ resource\b")
_SECOND_CONTROLLER = "Only one reference can have Controller set to true"


def failure_kind(error: ApiError) -> FailureKind:
    """Why a call was refused or not answered."""
    message = error.message
    if "NamespaceTerminating" in error.causes or "because it is being terminated" in message:
        return FailureKind.NAMESPACE_TERMINATING
    match error.code:
        case 403 if any(word in message for word in _QUOTA):
            return FailureKind.QUOTA
        case 403:
            return FailureKind.FORBIDDEN if _LACKS_RIGHT.search(message) else FailureKind.DENIED
        case 404 if "namespaces" in message:
            return FailureKind.NAMESPACE_TERMINATING
        case 409:
            return FailureKind.NAME_TAKEN if error.reason == "AlreadyExists" else FailureKind.CONFLICT
        case 400 | 422 if "denied" in message:
            return FailureKind.DENIED
        case 400 | 422:
            return FailureKind.NAME_TAKEN if _SECOND_CONTROLLER in message else FailureKind.INVALID
        case _:
            return FailureKind.UNAVAILABLE


def failure(key: str, error: ApiError, before: Failure | None, *, now: float) -> Failure:
    """The failure of an action; `before`: its last one, if it has not succeeded since."""
    return Failure(
        key=key,
        kind=failure_kind(error),
        verb=error.verb,
        resource=error.resource,
        name=error.name,
        message=error.message,
        at=now,
        count=1 + (before.count if before is not None else 0),
    )
