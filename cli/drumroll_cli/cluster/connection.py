"""The shell: one API server, raw objects in and out. With `kubeconfig` the only module that imports the client.

Every refusal is raised as an error with a sentence (`answers`). Requests have deadlines; nothing is retried here.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic.client import DynamicClient
from kubernetes.aio.stream import WsApiClient

from drumroll.errors import DrumrollError, UserError
from drumroll_cli.cluster.answers import Asked, ClusterRefusal, ClusterUnreachable, error_of
from drumroll_cli.cluster.kubeconfig import Target, find_target
from drumroll_cli.cluster.where import Where

T = TypeVar("T")
Json = dict[str, Any]
Query = Mapping[str, str | int | bool | None]

FIELD_MANAGER = "drumroll-cli"
REQUEST_S = 30.0
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_STDOUT, _STDERR, _END = 1, 2, 3
"""Channels of an exec's WebSocket."""


def on_cluster(where: Where, action: Callable[["Cluster"], Awaitable[T]], *, timeout_s: float | None = None) -> T:
    """The result of an action on the cluster that `where` leads to.

    Raises:
        UserError: the kubeconfig is at fault, or the server refuses.
        ClusterUnreachable: the server does not answer, or the action takes longer than `timeout_s`.
    """

    async def run() -> T:
        async with asyncio.timeout(timeout_s), connected(where) as cluster:
            return await action(cluster)

    try:
        return asyncio.run(run())
    except TimeoutError as error:
        raise ClusterUnreachable(f"the API server has not answered within {timeout_s} s") from error


@asynccontextmanager
async def connected(where: Where) -> "AsyncIterator[Cluster]":
    """A client for as long as the block runs."""
    target = await find_target(where)
    async with ApiClient(configuration=target.configuration) as client:
        yield Cluster(client, target)


class Cluster:
    """One API server and the namespace that is meant."""

    def __init__(self, client: Any, target: Target) -> None:
        self._client = client
        self._dynamic = DynamicClient(client)  # Without discovery: every path is known.
        self._target = target

    @property
    def namespace(self) -> str:
        """The namespace that is meant where none is named."""
        return self._target.namespace

    @property
    def context(self) -> str:
        """Name of the kubeconfig's context."""
        return self._target.context

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self._target.configuration.host)

    def within(self, namespace: str) -> "Cluster":
        """The same server, another namespace."""
        return Cluster(self._client, replace(self._target, namespace=namespace))

    async def get(self, path: str, query: Query | None = None) -> Json:
        """An object, or a list as the server gives it."""
        return await self._json("get", path, query)

    async def find(self, path: str) -> Json | None:
        """An object; None where it does not exist."""
        try:
            return await self.get(path)
        except ClusterRefusal as error:
            if error.code == 404:
                return None
            raise

    async def exists(self, path: str) -> bool:
        """Whether there is an object; only its metadata is asked for, so that no Secret is read."""
        try:
            await self._json("get", path, None, accept=_METADATA_ONLY)
        except ClusterRefusal as error:
            if error.code == 404:
                return False
            raise
        return True

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Json]:
        """All items, page by page."""
        items: list[Json] = []
        query: dict[str, str | int | bool | None] = {"limit": 500}
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            page = await self.get(path, query)
            items += page.get("items") or []
            if not (more := (page.get("metadata") or {}).get("continue")):
                return items
            query["continue"] = more

    async def create(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """The created object; unknown fields are refused."""
        query = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER, "dryRun": "All" if dry_run else None}
        return await self._json("post", path, query, body)

    async def review(self, path: str, body: Json) -> Json:
        """The answer to a review, such as a SelfSubjectAccessReview: nothing is stored."""
        return await self._json("post", path, None, body)

    async def merge(self, path: str, change: Json) -> Json:
        """The object after a merge patch."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._json("patch", path, query, change, content_type="application/merge-patch+json")

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete this very object and what it owns, in the background."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._json("delete", path, None, body)

    async def lines(self, path: str, query: Query) -> AsyncIterator[str]:
        """Lines of a text that may never end, such as a log that is followed."""
        response = await self._request("get", path, query, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0))
        try:
            async for line in response.content:
                yield line.decode("utf-8", "replace").rstrip("\r\n")
        except aiohttp.ClientError as error:
            raise ClusterUnreachable(f"the connection to {self.server} has broken: {error}") from error
        finally:
            response.close()

    async def run(self, path: str, container: str, command: Sequence[str]) -> AsyncIterator[str]:
        """Lines that a command inside a container writes; `path` is the pod's. Closing it closes the connection.

        Raises:
            ClusterRefusal: not allowed, or the command fails; the message holds what it wrote to standard error.
        """
        query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", c) for c in command)]
        client = WsApiClient(configuration=self._target.configuration)
        try:
            _, url, headers, *_ = await client.param_serialize(
                "GET", f"{path}/exec", query_params=query, header_params={}, auth_settings=["BearerToken"]
            )
            answer = await client.request("GET", url, headers=headers, _preload_content=False)
            async with answer as socket:
                async for line in _lines_of(socket):
                    yield line
        except aiohttp.WSServerHandshakeError as error:
            asked = Asked(f"{path}/exec", self.namespace, self.context)
            raise error_of(error.status, error.message, asked) from error
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        finally:
            await client.close()

    async def _json(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Json | None = None,
        content_type: str | None = None,
        accept: str | None = None,
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=REQUEST_S, sock_connect=10.0)
        response = await self._request(method, path, query, body, content_type, accept, timeout=timeout)
        try:
            value = await response.json()
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        return value if isinstance(value, dict) else {"value": value}

    async def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Json | None = None,
        content_type: str | None = None,
        accept: str | None = None,
        *,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        parameters = [(key, _text(value)) for key, value in (query or {}).items() if value is not None]
        try:
            return await self._dynamic.request(
                method,
                path,
                body=body,
                query_params=parameters,
                content_type=content_type,
                header_params={"Accept": accept} if accept else {},
                serialize=False,
                _request_timeout=timeout,
            )
        except ApiException as error:
            asked = Asked(path, self.namespace, self.context)
            raise error_of(int(error.status or 0), error.body or "", asked) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> DrumrollError:
        if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError):
            return UserError(
                f"{self.server} has a certificate that context {self.context} does not trust ({error}): "
                "correct certificate-authority in the kubeconfig, or choose another context by --context"
            )
        why = str(error) or type(error).__name__
        return ClusterUnreachable(
            f"the API server of context {self.context} does not answer ({why}): is the cluster up, and the network or "
            "VPN to it? --context chooses another one"
        )


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _lines_of(socket: Any) -> AsyncIterator[str]:
    """Lines of standard output; a failed end raises with standard error's text."""
    rest, said = b"", b""
    async for message in socket:
        data = message.data if isinstance(message.data, bytes) else str(message.data).encode()
        channel, text = data[:1], data[1:]
        if channel == bytes([_STDOUT]):
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        elif channel == bytes([_STDERR]):
            said = (said + text)[-2_000:]
        elif channel == bytes([_END]) and (status := json.loads(text)).get("status") != "Success":
            words = said.decode("utf-8", "replace").strip()
            raise ClusterRefusal(words or str(status.get("message", "the command failed")), code=0, reason="Failed")
    if rest:
        yield rest.decode("utf-8", "replace")
