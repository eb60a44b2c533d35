"""The API server as the reconciler sees it: a protocol on raw objects, its errors, and the kinds that are used.

Objects are plain dictionaries as on the wire. Every call either answers or raises ApiError within its time limit. No
call needs a right beyond one verb on one resource, so that an error names both. `memory_cluster` and `kube_cluster`
implement it.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from drumroll.errors import TemporaryError

Raw = dict[str, Any]
"""An object of the API, as JSON has it."""

FIELD_MANAGER = "drumroll-operator"
"""Owner of every field that the operator applies to a child."""
STATUS_MANAGER = "drumroll-operator-status"
"""Owner of the job's status."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A namespaced kind of object."""

    name: str
    api_version: str
    plural: str

    @property
    def root(self) -> str:
        """Path of its API group and version."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"


RLJOBS = Kind("RLJob", "drumroll.dev/v1alpha1", "rljobs")
PODS = Kind("Pod", "v1", "pods")
CONFIG_MAPS = Kind("ConfigMap", "v1", "configmaps")
SECRETS = Kind("Secret", "v1", "secrets")
SERVICES = Kind("Service", "v1", "services")
DISRUPTION_BUDGETS = Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets")
NETWORK_POLICIES = Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies")
EVENTS = Kind("Event", "events.k8s.io/v1", "events")
LEASES = Kind("Lease", "coordination.k8s.io/v1", "leases")

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        RLJOBS,
        PODS,
        CONFIG_MAPS,
        SECRETS,
        SERVICES,
        DISRUPTION_BUDGETS,
        NETWORK_POLICIES,
        EVENTS,
        LEASES,
    )
}
"""By the `kind` of a manifest."""


@dataclass(frozen=True, slots=True)
class Access:
    """A way to the API server."""

    server: str
    """https://host:port"""
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    token: str | None = None
    verify: bool = True


class ApiError(TemporaryError):
    """A call that was refused, or not answered."""

    def __init__(
        self,
        message: str,
        *,
        verb: str,
        resource: str,
        name: str = "",
        namespace: str = "",
        code: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        where = f" {name}" if name else ""
        where += f" in namespace {namespace}" if namespace else ""
        said = f"{code} {reason}".strip() if code else "no answer"
        super().__init__(f"{verb} {resource}{where}: {said}: {message}")
        self.message = message
        """The server's words alone."""
        self.verb = verb
        """get | list | watch | create | patch | update | delete."""
        self.resource = resource
        """Plural, with the subresource: pods, rljobs/status."""
        self.name = name
        self.namespace = namespace
        self.code = code
        """HTTP status; 0: there was no answer."""
        self.reason = reason
        """Of the Status object, such as AlreadyExists, Forbidden, Conflict, Expired."""
        self.causes = causes
        """Types of the Status's causes, such as NamespaceTerminating."""
        self.retry_after_s = retry_after_s
        """What the server asked for."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a list."""

    items: list[Raw]
    """Without apiVersion and kind, as lists have them."""
    resource_version: str
    """Of the whole list; the same on every page."""


class Cluster(Protocol):
    """The few calls that the operator makes."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Raw:
        """One object. 404 where there is none."""
        ...

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> AsyncIterator[Page]:
        """All objects of a namespace, or of the cluster, page by page."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, labels: str = "", timeout_s: float = 300.0
    ) -> AsyncIterator[Raw]:
        """Events {type, object}, bookmarks among them, until the server ends the watch at about `timeout_s`.

        Raises ApiError 410 (Expired) where `resource_version` is too old, be it by status or by an ERROR event, and
        code 0 where the connection breaks or is silent for over a minute and a half.
        """
        ...

    async def create(self, manifest: Raw) -> Raw:
        """POST. 409 AlreadyExists where the name is taken."""
        ...

    async def apply(self, manifest: Raw) -> Raw:
        """Server-side apply with FIELD_MANAGER, by force: creates the object or takes over the fields named."""
        ...

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Raw) -> Raw:
        """Merge patch (RFC 7386)."""
        ...

    async def update(self, manifest: Raw) -> Raw:
        """PUT, tested against the manifest's resourceVersion: 409 Conflict where it is not the newest."""
        ...

    async def write_status(self, namespace: str, name: str, status: Raw, *, resource_version: str) -> Raw:
        """Replace an RLJob's whole status; 409 Conflict unless resourceVersion is the newest."""
        ...

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> Raw:
        """Delete in the background; the answer is the object or a Status. 404 where there is none; 409 Conflict where
        another uid bears the name."""
        ...
