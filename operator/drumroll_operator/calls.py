"""One call of the API server, and the errors that its answers stand for."""

import json
from typing import TypedDict

from drumroll_operator.cluster import ApiError


class _Named(TypedDict):
    verb: str
    resource: str
    namespace: str
    name: str


class Call:
    """What an error says of a call."""

    def __init__(self, verb: str, resource: str, namespace: str, name: str) -> None:
        self._named: _Named = {"verb": verb, "resource": resource, "namespace": namespace, "name": name}

    def refused(self, code: int, content: bytes, retry_after: str | None = None) -> ApiError:
        """The error of a Status object, or of whatever else came."""
        try:
            status = json.loads(content)
        except ValueError:
            status = {}
        if not isinstance(status, dict) or status.get("kind") != "Status":
            status = {"message": content[:500].decode("utf-8", "replace").strip() or "no message"}
        details = status.get("details") or {}
        seconds = retry_after if retry_after and retry_after.isdigit() else details.get("retryAfterSeconds")
        return ApiError(
            str(status.get("message", "")),
            code=code,
            reason=str(status.get("reason", "")),
            causes=tuple(str(cause.get("reason", "")) for cause in details.get("causes") or ()),
            retry_after_s=float(seconds) if seconds else None,
            **self._named,
        )

    def unanswered(self, error: BaseException) -> ApiError:
        """The error of a broken or silent connection."""
        return ApiError(str(error) or type(error).__name__, **self._named)
