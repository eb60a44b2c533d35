"""What an API server's refusal means, in a sentence that says what to do. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumroll.errors import DrumrollError, TemporaryError, UserError

GROUP_PATH = "/apis/drumroll.dev/"
_WHO = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"')
_STRICT = re.compile(r"strict decoding error: (.*)", re.DOTALL)
_SERVERS_WORDS = re.compile(r"^[A-Z][a-z ]+: ")
"""`Invalid value: `, `Required value: ` and the like, before the sentence of a cause."""


class ClusterRefusal(UserError):
    """The API server refuses a call, for a reason that its caller can do something about."""

    def __init__(self, message: str, *, code: int, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        """HTTP status."""
        self.reason = reason
        """The server's word, such as NotFound, AlreadyExists, Forbidden."""


class ClusterUnreachable(TemporaryError):
    """The API server does not answer, or not now."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The call that was refused."""

    path: str
    default_namespace: str
    context: str

    @property
    def namespace(self) -> str:
        """The one of the path, else the one that is meant."""
        _, found, rest = self.path.partition("/namespaces/")
        return rest.split("/")[0] if found else self.default_namespace

    @property
    def kind(self) -> str:
        """Plural of what it was about, such as rljobs; with the subresource, such as pods/log."""
        parts = [part for part in self.path.split("?")[0].split("/") if part]
        rest = (
            parts[parts.index("namespaces") + 2 :]
            if "namespaces" in parts[:-2]
            else parts[2 if parts[0] == "api" else 3 :]
        )
        return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0] if rest else self.path


def error_of(code: int, body: str, asked: Asked) -> DrumrollError:
    """The error that a refused call is raised as."""
    status = _status(body)
    reason, message = str(status.get("reason", "")), str(status.get("message", "")) or body.strip()[:500]
    if code == 429 or code >= 500:
        return ClusterUnreachable(f"the API server cannot answer now ({code}): {message}; try again")
    text = {401: _unauthorized, 403: _forbidden, 404: _not_found, 400: _invalid, 422: _invalid}.get(code, _plain)(
        status, message, asked
    )
    return ClusterRefusal(text, code=code, reason=reason)


def _status(body: str) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(status: Mapping[str, Any], message: str, asked: Asked) -> str:
    return f"the API server refuses: {message}"


def _unauthorized(status: Mapping[str, Any], message: str, asked: Asked) -> str:
    return (
        f"the API server of context {asked.context} does not accept your credentials: log in again, or choose another "
        "context by --context"
    )


def _forbidden(status: Mapping[str, Any], message: str, asked: Asked) -> str:
    if "exceeded quota" in message:
        what = message.partition("exceeded quota: ")[2] or message
        return f"namespace {asked.namespace} has no quota left ({what}): ask for less, or for more quota"
    if "being terminated" in message or "NamespaceTerminating" in message:
        return f"namespace {asked.namespace} is being deleted: choose another one by -n"
    if found := _WHO.search(message):
        where = f"in namespace {asked.namespace}" if "in the namespace" in message else "in the whole cluster"
        return (
            f"{found['user']} may not {found['verb']} {found['resource']} {where}: choose another namespace by -n, or "
            "ask for a role that may (docs/rbac.md)"
        )
    return f"the API server refuses: {message}"


def _not_found(status: Mapping[str, Any], message: str, asked: Asked) -> str:
    details = _mapping(status.get("details"))
    name, kind = details.get("name"), str(details.get("kind", ""))
    if kind == "namespaces" and name:
        return f"there is no namespace {name}: create it, or choose another one by -n"
    if name and kind == "rljobs":
        return f"there is no RLJob {name} in namespace {asked.namespace}: `drumroll status` lists the jobs there"
    if name:
        return f"there is no {kind.rstrip('s')} {name} in namespace {asked.namespace}"
    if asked.path.startswith(GROUP_PATH):
        return (
            f"the cluster of context {asked.context} does not know RLJobs: install the chart (docs/install.md), or "
            "choose another context by --context"
        )
    return f"the API server has no {asked.kind}: {message}"


def _invalid(status: Mapping[str, Any], message: str, asked: Asked) -> str:
    causes = _mapping(status.get("details")).get("causes")
    if isinstance(causes, list) and causes:
        return "\n".join(_cause(_mapping(cause)) for cause in causes)
    if found := _STRICT.search(message):
        return "\n".join(part.strip() for part in found[1].split(", "))
    return f"the API server refuses: {message}"


def _cause(cause: Mapping[str, Any]) -> str:
    text, field = str(cause.get("message", "")), str(cause.get("field", ""))
    sentence = _SERVERS_WORDS.sub("", text)
    # Then comes the value, as JSON; a whole object says nothing.
    value, colon, rest = _leading_json(sentence)
    if colon:
        sentence = rest
        shown = f" is {value}" if value and not value.startswith(("{", "[")) and len(value) <= 60 else ""
        return f"{field}{shown}: {sentence}"
    return f"{field}: {sentence}" if field and field != "<nil>" else sentence


def _leading_json(text: str) -> tuple[str, str, str]:
    """A JSON value at the beginning, the colon behind it, the rest; no colon where there is no such value."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return "", "", text
    if text[end : end + 2] != ": ":
        return "", "", text
    return text[:end], ":", text[end + 2 :]
