"""The API of a cluster, for tests: kubectl where a user would take it, plain HTTP through its proxy for polling."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from kit.shell import run

from drumroll.testing import eventually_sync

T = TypeVar("T")

Object = dict[str, Any]
SLOW_S = 240.0
"""For what takes seconds on a quiet machine."""


class ApiError(AssertionError):
    """The API server's refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass
class Kube:
    """One cluster."""

    kubectl_path: str
    environment: Mapping[str, str] = field(repr=False)
    _proxy: subprocess.Popen[str] | None = field(default=None, repr=False)
    _url: str = ""

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True, deadline_s: float = SLOW_S) -> str:
        """What kubectl says; without `check` also of an error."""
        command = [self.kubectl_path, *arguments]
        done = run(command, env=self.environment, text=text, check=check, deadline_s=deadline_s)
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *manifests: Object | str, namespace: str | None = None) -> str:
        """`kubectl apply` of objects or of YAML."""
        documents = [m if isinstance(m, str) else yaml.safe_dump(m) for m in manifests]
        where = ["-n", namespace] if namespace else []
        return self.kubectl("apply", *where, "-f", "-", text="\n---\n".join(documents))

    def open(self) -> "Kube":
        """Start the proxy."""
        # exec and the like are kubectl's own: they need no way through here.
        command = [self.kubectl_path, "proxy", "--port=0", "--reject-paths=^/api/.*/pods/.*/(exec|attach)"]
        self._proxy = subprocess.Popen(command, env=dict(self.environment), stdout=subprocess.PIPE, text=True)
        assert self._proxy.stdout is not None
        self._url = f"http://{self._proxy.stdout.readline().split()[-1]}"
        return self

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.terminate()
            self._proxy.wait()
            assert self._proxy.stdout is not None
            self._proxy.stdout.close()

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """The answer.

        Raises:
            ApiError: the server refuses.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": content_type}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise ApiError(error.code, _message(text)) from None

    def get(self, path: str) -> Object | None:
        """An object, or None where there is none."""
        try:
            found: Object = self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def items(self, path: str) -> list[Object]:
        """The objects of a list."""
        return list(self.request("GET", path)["items"])

    def patch(self, path: str, body: Any) -> Object:
        """A JSON merge patch, or JSON patch where the body is a list."""
        kind = "json-patch" if isinstance(body, list) else "merge-patch"
        patched: Object = self.request("PATCH", path, body, f"application/{kind}+json")
        return patched

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Ask for it; gone already is as good."""
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self.request("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except ApiError as error:
            if error.status != 404:
                raise

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        query = f"?labelSelector={urllib.request.quote(selector)}" if selector else ""  # type: ignore[attr-defined]
        return self.items(f"/api/v1/namespaces/{namespace}/pods{query}")

    def execute(self, namespace: str, pod: str, *command: str, text: str | None = None, **options: Any) -> str:
        """A command in a running pod's container: what it says."""
        return self.kubectl("exec", "-i", "-n", namespace, pod, "--", *command, text=text or "", **options)


def patiently(look: Callable[[], T], deadline_s: float, what: Callable[[], str] | str) -> T:
    """The first true value of `look`; an API server that is away meanwhile is waited for."""
    last: list[object] = [None]

    def once() -> T | None:
        try:
            value = look()
        except (ApiError, OSError) as error:
            if isinstance(error, ApiError) and error.status < 500:
                raise
            last[0] = error
            return None
        last[0] = value
        return value

    try:
        return eventually_sync(once, deadline_s, "", pause_s=0.5)  # type: ignore[return-value]
    except AssertionError:
        message = what if isinstance(what, str) else what()
        raise AssertionError(f"not within {deadline_s} s: {message}; last seen: {last[0]!r}") from None


def conditions(thing: Object | None) -> dict[str, Object]:
    """Conditions by their type."""
    return {condition["type"]: condition for condition in (thing or {}).get("status", {}).get("conditions", [])}


def is_true(thing: Object | None, kind: str) -> bool:
    return conditions(thing).get(kind, {}).get("status") == "True"


def names(things: Iterable[Object]) -> list[str]:
    return sorted(thing["metadata"]["name"] for thing in things)


def uids(things: Iterable[Object]) -> dict[str, str]:
    """Name to uid."""
    return {thing["metadata"]["name"]: thing["metadata"]["uid"] for thing in things}


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))
    except ValueError:
        return text
