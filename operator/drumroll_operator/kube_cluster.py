"""The real API server: raw dictionaries over the HTTP client of `kubernetes.aio`, without its models and discovery.

Nothing is asked of the cluster's scope, not even which kinds it serves. A server that asks for patience (429, or 503
with Retry-After) is waited for if the wait is short, else the error carries it to the caller.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException

from drumroll.errors import UserError
from drumroll_operator.calls import Call
from drumroll_operator.cluster import FIELD_MANAGER, KINDS, STATUS_MANAGER, Access, Kind, Page, Raw

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 90.0
"""A watch sends a bookmark every minute at least."""
_PAGE = 250
_PATIENCE_S = 3.0
_ATTEMPTS = 3
_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"

Observer = Callable[[str, str, int], None]
"""Told of each answered request: verb, resource, HTTP status (0: no answer)."""


async def load_configuration(kubeconfig: str | None = None) -> Configuration:
    """How to reach the API server: the file, else this pod's service account, else the user's own kubeconfig.

    Raises:
        UserError: there is none of these, or the file cannot be read.
    """
    # Else every request looks for proxies and passwords in files, in a thread; a kubeconfig's own proxy counts.
    configuration = Configuration(client_session_kwargs={"trust_env": False})
    try:
        if kubeconfig is None:
            try:
                kube_config.load_incluster_config(configuration)
            except ConfigException:
                await kube_config.load_kube_config(client_configuration=configuration, persist_config=False)
        else:
            await kube_config.load_kube_config(kubeconfig, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError) as error:
        raise UserError(
            f"no way to the API server: {error}; run in a pod with a service account, or name a file by --kubeconfig"
        ) from error
    return configuration


class KubeCluster:
    """A Cluster (see there) behind one connection pool."""

    def __init__(self, configuration: Configuration, *, observer: Observer | None = None) -> None:
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)
        self._observer = observer or (lambda verb, resource, code: None)

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()

    async def access(self) -> Access:
        """The same way to the API server, for another client; with the token of now."""
        configuration = self._configuration
        token = await configuration.get_api_key_with_prefix("BearerToken")
        return Access(
            server=configuration.host,
            ca_file=configuration.ssl_ca_cert,
            certificate_file=configuration.cert_file,
            key_file=configuration.key_file,
            # The header's value as it stands has its scheme in front.
            token=token.split(" ", 1)[-1] if token else None,
            verify=configuration.verify_ssl,
        )

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server tells of the kind yet: a new CRD takes a moment.

        Raises:
            ApiError: not answered.
        """
        groups = [group["name"] for group in await self._told("/apis", "groups")]
        plurals = [resource["name"] for resource in await self._told(kind.root, "resources")]
        return kind.api_version.partition("/")[0] in groups and kind.plural in plurals

    async def _told(self, path: str, key: str) -> list[Raw]:
        """A part of what the API server tells of itself; nothing where it does not know the path."""
        call = Call("get", path, "", "")
        try:
            async with await self._send("GET", path) as response:
                found: list[Raw] = json.loads(await response.read())[key] if response.status == 200 else []
        except (TimeoutError, OSError, aiohttp.ClientError, ValueError) as error:
            raise call.unanswered(error) from error
        return found

    async def get(self, kind: Kind, namespace: str, name: str) -> Raw:
        """See Cluster."""
        return await self._call("get", "GET", kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> AsyncIterator[Page]:
        """See Cluster."""
        more = ""
        while True:
            query = {"limit": str(_PAGE), "labelSelector": labels, "continue": more}
            answer = await self._call("list", "GET", kind, namespace, query=query)
            yield Page(answer["items"], answer["metadata"]["resourceVersion"])
            more = answer["metadata"].get("continue", "")
            if not more:
                return

    async def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, labels: str = "", timeout_s: float = 300.0
    ) -> AsyncIterator[Raw]:
        """See Cluster."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "labelSelector": labels,
            "timeoutSeconds": str(int(timeout_s)),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S)
        call = Call("watch", kind.plural, namespace or "", "")
        try:
            response = await self._send("GET", _path(kind, namespace, "", query), timeout=timeout)
            async with response:
                self._observer("watch", kind.plural, response.status)
                if response.status != 200:
                    raise call.refused(response.status, await response.read(), response.headers.get("Retry-After"))
                while line := await response.content.readline():
                    event: Raw = json.loads(line)
                    if event["type"] == "ERROR":
                        raise call.refused(int(event["object"].get("code", 0)), json.dumps(event["object"]).encode())
                    yield event
        except (TimeoutError, OSError, aiohttp.ClientError, ValueError) as error:
            self._observer("watch", kind.plural, 0)
            raise call.unanswered(error) from error

    async def create(self, manifest: Raw) -> Raw:
        """See Cluster."""
        kind, metadata = KINDS[manifest["kind"]], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER}
        call_name = metadata.get("name", "")
        return await self._call(
            "create", "POST", kind, metadata["namespace"], query=query, body=manifest, about=call_name
        )

    async def apply(self, manifest: Raw) -> Raw:
        """See Cluster."""
        kind, metadata = KINDS[manifest["kind"]], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call(
            "patch", "PATCH", kind, metadata["namespace"], metadata["name"], query=query, body=manifest, media=_APPLY
        )

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Raw) -> Raw:
        """See Cluster."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("patch", "PATCH", kind, namespace, name, query=query, body=patch, media=_MERGE)

    async def update(self, manifest: Raw) -> Raw:
        """See Cluster."""
        kind, metadata = KINDS[manifest["kind"]], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call(
            "update", "PUT", kind, metadata["namespace"], metadata["name"], query=query, body=manifest
        )

    async def write_status(self, namespace: str, name: str, status: Raw, *, resource_version: str) -> Raw:
        """See Cluster."""
        # Replacing the version makes a stale one a conflict; a failed test would look like an invalid object.
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]
        return await self._call(
            "patch",
            "PATCH",
            KINDS["RLJob"],
            namespace,
            name,
            subresource="status",
            query={"fieldManager": STATUS_MANAGER},
            body=patch,
            media=_JSON_PATCH,
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> Raw:
        """See Cluster."""
        options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._call("delete", "DELETE", kind, namespace, name, body=options)

    async def _call(
        self,
        verb: str,
        method: str,
        kind: Kind,
        namespace: str | None,
        name: str = "",
        *,
        subresource: str = "",
        query: dict[str, str] | None = None,
        body: Any = None,
        media: str = _JSON,
        about: str = "",
    ) -> Raw:
        """One request, again where the server asks for a short wait."""
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        call = Call(verb, resource, namespace or "", name or about)
        path = _path(kind, namespace, f"{name}/{subresource}" if subresource else name, query or {})
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = await self._send(method, path, body=body, media=media)
                async with response:
                    content = await response.read()
            except (TimeoutError, OSError, aiohttp.ClientError) as error:
                self._observer(verb, resource, 0)
                raise call.unanswered(error) from error
            self._observer(verb, resource, response.status)
            if response.status < 300:
                answer: Raw = json.loads(content)
                return answer
            refusal = call.refused(response.status, content, response.headers.get("Retry-After"))
            wait_s = refusal.retry_after_s
            if wait_s is None or wait_s > _PATIENCE_S or attempt == _ATTEMPTS:
                raise refusal
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(
        self, method: str, path: str, *, body: Any = None, media: str = _JSON, timeout: object = None
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": media, "Accept": _JSON, "User-Agent": "drumroll-operator"}
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        answer = await self._rest.request(
            method,
            self._configuration.host + path,
            headers=headers,
            body=body,
            _request_timeout=timeout or aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
        )
        response: aiohttp.ClientResponse = answer.response
        return response


def _path(kind: Kind, namespace: str | None, rest: str, query: dict[str, str]) -> str:
    path = kind.root + (f"/namespaces/{quote(namespace)}" if namespace is not None else "") + f"/{kind.plural}"
    path += f"/{quote(rest)}" if rest else ""
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path
