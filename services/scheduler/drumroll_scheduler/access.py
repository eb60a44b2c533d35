"""Who may call what: bearer tokens by role, and what every call's header must say."""

import hmac
from collections.abc import Iterable, Mapping

from drumroll_proto.v1 import common_pb2

from drumroll.errors import ProtocolError, TemporaryError
from drumroll.rpc_status import AccessRefused

_ALL = frozenset({"scheduler", "rollout", "trainer", "viewer", "operator"})
_ROLLOUT = frozenset({"rollout"})
_TRAINER = frozenset({"trainer"})

ALLOWED: Mapping[str, frozenset[str]] = {
    "Register": _ROLLOUT | _TRAINER,
    "Register as rollout": _ROLLOUT,
    "Register as trainer": _TRAINER,
    "Heartbeat": _ROLLOUT,
    "Lease": _ROLLOUT,
    "Report": _ROLLOUT,
    "HandBack": _ROLLOUT,
    "NextStep": _TRAINER,
    "Commit": _TRAINER,
    "Announce": _TRAINER,
    "Pin": _ROLLOUT | _TRAINER | {"scheduler"},
    "SetLive": frozenset({"scheduler", "operator"}),
    "Watch": _ALL,
    "Status": _ALL,
}
"""Method to the roles whose token opens it; the scheduler's own token is the command line's on a laptop."""


def role_of(metadata: Iterable[tuple[str, str | bytes]], tokens: Mapping[str, str]) -> str:
    """The role whose token a call carries; `tokens` maps roles to tokens.

    Raises:
        AccessRefused: no token, or one that is nobody's.
    """
    given = next((value for key, value in metadata if key == "authorization"), None)
    if given is None:
        raise AccessRefused("the call carries no token")
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    token = text.removeprefix("Bearer ").encode()
    # All are compared, so that the time taken says nothing.
    found = [role for role, own in tokens.items() if hmac.compare_digest(token, own.encode())]
    if not found:
        raise AccessRefused("the call's token is not one of this job")
    return found[0]


def check_role(method: str, role: str) -> None:
    """Raise AccessRefused where the role may not make the call."""
    if role not in ALLOWED[method]:
        raise AccessRefused(f"{method} is not for the role {role}; it is for {', '.join(sorted(ALLOWED[method]))}")


def check_header(header: common_pb2.CallHeader, *, job_uid: str, incarnation: int) -> None:
    """Check that a call is meant for this job and this scheduler.

    Raises:
        ProtocolError: another job's call, or one without a request id.
        TemporaryError: the caller has seen a newer scheduler, so that this one has been replaced.
    """
    if header.job_uid != job_uid:
        raise ProtocolError(f"header.job_uid is {header.job_uid!r}, but this is the scheduler of {job_uid!r}")
    if not header.request_id:
        raise ProtocolError("header.request_id is empty; every call needs one, the same for all its retries")
    if header.incarnation > incarnation:
        raise TemporaryError(f"incarnation {header.incarnation} has replaced this scheduler ({incarnation})")
