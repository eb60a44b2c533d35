"""How an error crosses the wire: the one place that says which status code and detail stand for which error.

The server sends `<kind>: <message>` as the detail; the client makes the same error of it again. What has no kind is
transient for the client (the scheduler restarts, the network drops a connection) but for the few codes that no retry
can mend.
"""

from enum import StrEnum

import grpc

from drumroll.errors import DrumrollError, Fenced, JobFailed, ProtocolError, TemporaryError, UserError


class AccessRefused(ProtocolError):
    """The token is missing, unknown, or of a role that may not make this call."""


class StatusKind(StrEnum):
    """First word of a status detail."""

    FENCED = "fenced"
    """The caller was replaced: a stale trainer epoch."""
    ACCESS = "access"
    """No or a wrong token."""
    PROTOCOL = "protocol"
    """A wrong job, an unknown value, a version that is not spoken."""
    USER = "user"
    """The user's mistake."""
    FAILED = "failed"
    """The job cannot go on."""
    RETRY = "retry"
    """Try again."""


_BY_KIND: dict[StatusKind, tuple[type[DrumrollError], grpc.StatusCode]] = {
    StatusKind.FENCED: (Fenced, grpc.StatusCode.FAILED_PRECONDITION),
    StatusKind.ACCESS: (AccessRefused, grpc.StatusCode.PERMISSION_DENIED),
    StatusKind.PROTOCOL: (ProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    StatusKind.USER: (UserError, grpc.StatusCode.INVALID_ARGUMENT),
    StatusKind.FAILED: (JobFailed, grpc.StatusCode.FAILED_PRECONDITION),
    StatusKind.RETRY: (TemporaryError, grpc.StatusCode.UNAVAILABLE),
}

_PERMANENT = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
}


def to_status(error: DrumrollError) -> tuple[grpc.StatusCode, str]:
    """Status code and detail that stand for an error."""
    for kind, (error_type, code) in _BY_KIND.items():
        if isinstance(error, error_type):
            return code, f"{kind}: {error}"
    return grpc.StatusCode.UNAVAILABLE, f"{StatusKind.RETRY}: {error}"


def from_status(code: grpc.StatusCode, detail: str | None) -> DrumrollError | None:
    """The error that a status stands for; None where the call is to be tried again."""
    word, _, message = (detail or "").partition(": ")
    kind = next((kind for kind in StatusKind if kind == word), None)
    if kind is not None:
        error_type, _code = _BY_KIND[kind]
        return None if kind is StatusKind.RETRY else error_type(message)
    if code in _PERMANENT:
        return ProtocolError(f"the call was refused ({code.name}): {detail}")
    return None
