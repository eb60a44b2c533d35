"""A small API server in memory: create, apply, update, delete, status, events, quota, missing rights, dying namespaces.

Synchronous and deterministic; time is handed in. It keeps what the operator relies on: resourceVersions, uids,
preconditions, graceful deletion of pods, and collection of what a deleted job owned. It knows no schemas.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from drumroll.clock import Clock
from drumroll_operator.cluster import KINDS, ApiError, Kind, Raw

Key = tuple[str, str, str]
"""(kind, namespace, name)"""
_TERMINAL = ("Succeeded", "Failed")
_DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class Happening:
    """A change, as a watch tells it."""

    version: int
    type: str
    """ADDED | MODIFIED | DELETED"""
    object: Raw


@dataclass(slots=True)
class MemoryApi:
    """The server."""

    clock: Clock
    pod_quota: int | None = None
    """Most pods of a namespace that have not ended; None: no quota."""
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """(verb, resource) that the caller has no right to."""
    terminating: set[str] = field(default_factory=set)
    """Namespaces that are being deleted."""
    before: Callable[[str, str, str], None] | None = None
    """Called with (verb, resource, name) before each call; what it raises is the answer."""
    after: Callable[[str, str, str], None] | None = None
    """The same once a write is done: what it raises is an answer that got lost."""
    objects: dict[Key, Raw] = field(default_factory=dict)
    history: list[Happening] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """(verb, resource, name) of all calls so far."""
    _version: int = 0
    _uids: int = 0

    # -- calls ---------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Raw:
        """A copy of an object."""
        self._admit("get", kind.plural, namespace, name)
        return copy.deepcopy(self._find("get", kind, namespace, name))

    def list_all(self, kind: Kind, namespace: str | None, labels: str = "") -> list[Raw]:
        """Copies of all that match."""
        self._admit("list", kind.plural, namespace or "", "")
        return [copy.deepcopy(found) for found in self.select(kind, namespace, labels)]

    def create(self, manifest: Raw) -> Raw:
        """POST."""
        kind, namespace, name = _identity(manifest)
        self._admit("create", kind.plural, namespace, name)
        if (kind.name, namespace, name) in self.objects:
            message = f'{kind.plural} "{name}" already exists'
            raise self._error(message, "create", kind.plural, namespace, name, 409, "AlreadyExists")
        self._check_namespace("create", kind, namespace, name)
        if kind.name == "Pod":
            self._check_quota(namespace, name)
        return self._answer("create", kind.plural, self._add(kind, manifest))

    def apply(self, manifest: Raw) -> Raw:
        """Server-side apply by force: fields named are set, others stay. Nothing is written where nothing changes."""
        kind, namespace, name = _identity(manifest)
        self._admit("patch", kind.plural, namespace, name)
        known = self.objects.get((kind.name, namespace, name))
        if known is None:
            self._check_namespace("patch", kind, namespace, name)
            return self._add(kind, manifest)
        if _controllers(known) - _controllers(manifest):
            message = f"{kind.name} {name!r} is invalid: Only one reference can have Controller set to true"
            raise self._error(message, "patch", kind.plural, namespace, name, 422, "Invalid")
        return self._write(kind, _merged(known, manifest))

    def merge(self, kind: Kind, namespace: str, name: str, patch: Raw) -> Raw:
        """Merge patch; None removes."""
        self._admit("patch", kind.plural, namespace, name)
        return self._write(kind, _merged(self._find("patch", kind, namespace, name), patch, drop=True))

    def update(self, manifest: Raw) -> Raw:
        """PUT, tested against the resourceVersion."""
        kind, namespace, name = _identity(manifest)
        self._admit("update", kind.plural, namespace, name)
        known = self._find("update", kind, namespace, name)
        if known["metadata"]["resourceVersion"] != manifest["metadata"].get("resourceVersion"):
            raise self._error("the object has been modified", "update", kind.plural, namespace, name, 409, "Conflict")
        return self._write(kind, copy.deepcopy(manifest))

    def write_status(self, namespace: str, name: str, status: Raw, *, resource_version: str) -> Raw:
        """Replace an RLJob's status."""
        kind = KINDS["RLJob"]
        self._admit("patch", "rljobs/status", namespace, name)
        known = self._find("patch", kind, namespace, name)
        if known["metadata"]["resourceVersion"] != resource_version:
            raise self._error(
                "the object has been modified", "patch", "rljobs/status", namespace, name, 409, "Conflict"
            )
        raw = self._write(kind, {**copy.deepcopy(known), "status": copy.deepcopy(status)})
        return self._answer("patch", "rljobs/status", raw)

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> Raw:
        """DELETE: pods that run on a node get their grace, all else goes at once with what it owns."""
        self._admit("delete", kind.plural, namespace, name)
        known = self._find("delete", kind, namespace, name)
        if uid and known["metadata"]["uid"] != uid:
            message = f"Precondition failed: UID in precondition: {uid}"
            raise self._error(message, "delete", kind.plural, namespace, name, 409, "Conflict")
        return self._answer("delete", kind.plural, self._delete(kind, known, grace_s))

    # -- for kubelets, tests and watches -------------------------------------------------------------------------

    def select(self, kind: Kind, namespace: str | None, labels: str = "") -> list[Raw]:
        """All that match, as they are stored: read only."""
        wanted = [part.partition("=") for part in labels.split(",") if part]
        return [
            raw
            for (name, where, _), raw in sorted(self.objects.items())
            if name == kind.name
            and namespace in (None, where)
            and all(key in _labels(raw) and (not equals or _labels(raw)[key] == value) for key, equals, value in wanted)
        ]

    def set_status(self, pod: Raw, **changes: Any) -> Raw:
        """A kubelet's write of `status` fields and, with `node`, of the binding."""
        known = copy.deepcopy(self.objects[_key(pod)])
        if "node" in changes:
            known["spec"]["nodeName"] = changes.pop("node")
        known["status"] = {**known.get("status", {}), **changes}
        return self._write(KINDS["Pod"], known)

    def remove(self, raw: Raw) -> None:
        """The last step of a deletion."""
        gone = self.objects.pop(_key(raw))
        self._tell("DELETED", gone)
        for key in [key for key, other in self.objects.items() if gone["metadata"]["uid"] in _owners(other)]:
            if key in self.objects:
                self._delete(KINDS[key[0]], self.objects[key], None)

    def collect_garbage(self) -> bool:
        """Delete what was made for an owner that is gone; False where there is no such thing."""
        alive = {raw["metadata"]["uid"] for raw in self.objects.values()}
        before = self._version
        for key, raw in list(self.objects.items()):
            lost = _owners(raw) and not _owners(raw) & alive
            if lost and key in self.objects and not raw["metadata"].get("deletionTimestamp"):
                self._delete(KINDS[key[0]], raw, None)
        return self._version != before

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[Raw], None]) -> Raw:
        """A user's edit of an object."""
        known = copy.deepcopy(self.objects[kind.name, namespace, name])
        change(known)
        return self._write(kind, known)

    # -- inside --------------------------------------------------------------------------------------------------

    def _add(self, kind: Kind, manifest: Raw) -> Raw:
        raw = copy.deepcopy(manifest)
        self._uids += 1
        raw["metadata"] |= {"uid": f"uid-{self._uids}", "creationTimestamp": self._time(0), "generation": 1}
        if kind.name == "Pod":
            raw.setdefault("status", {"phase": "Pending"})
        self.objects[_key(raw)] = raw
        self._tell("ADDED", raw)
        return copy.deepcopy(raw)

    def _write(self, kind: Kind, raw: Raw) -> Raw:
        known = self.objects[kind.name, raw["metadata"]["namespace"], raw["metadata"]["name"]]
        if json.dumps(known, sort_keys=True) == json.dumps(raw, sort_keys=True):
            return copy.deepcopy(known)
        if known.get("spec") != raw.get("spec"):
            raw["metadata"]["generation"] = known["metadata"]["generation"] + 1
        self.objects[_key(raw)] = raw
        self._tell("MODIFIED", raw)
        return copy.deepcopy(raw)

    def _delete(self, kind: Kind, known: Raw, grace_s: int | None) -> Raw:
        asked = known["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S) if kind.name == "Pod" else 0
        grace = asked if grace_s is None else grace_s
        runs = known.get("status", {}).get("phase") not in _TERMINAL and known.get("spec", {}).get("nodeName")
        raw = copy.deepcopy(known)
        if kind.name != "Pod" or grace == 0 or not runs:
            raw["metadata"] |= {"deletionTimestamp": self._time(0), "deletionGracePeriodSeconds": 0}
            self.remove(known)
            return raw
        by = self._time(grace)
        if raw["metadata"].get("deletionTimestamp", by) >= by:
            raw["metadata"] |= {"deletionTimestamp": by, "deletionGracePeriodSeconds": grace}
        return self._write(kind, raw)

    def _find(self, verb: str, kind: Kind, namespace: str, name: str) -> Raw:
        known = self.objects.get((kind.name, namespace, name))
        if known is None:
            message = f'{kind.plural} "{name}" not found'
            raise self._error(message, verb, kind.plural, namespace, name, 404, "NotFound")
        return known

    def _admit(self, verb: str, resource: str, namespace: str, name: str) -> None:
        self.calls.append((verb, resource, name))
        if self.before is not None:
            self.before(verb, resource, name)
        if (verb, resource) in self.forbidden:
            message = f'User "operator" cannot {verb} resource "{resource}" in the namespace "{namespace}"'
            raise self._error(message, verb, resource, namespace, name, 403, "Forbidden")

    def _answer(self, verb: str, resource: str, raw: Raw) -> Raw:
        if self.after is not None:
            self.after(verb, resource, raw["metadata"]["name"])
        return raw

    def _check_namespace(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        if namespace in self.terminating:
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            causes = ("NamespaceTerminating",)
            raise self._error(message, verb, kind.plural, namespace, name, 403, "Forbidden", causes)

    def _check_quota(self, namespace: str, name: str) -> None:
        used = [p for p in self.select(KINDS["Pod"], namespace) if p.get("status", {}).get("phase") not in _TERMINAL]
        if self.pod_quota is not None and len(used) >= self.pod_quota:
            said = f"requested: pods=1, used: pods={len(used)}, limited: pods={self.pod_quota}"
            message = f'pods "{name}" is forbidden: exceeded quota: small, {said}'
            raise self._error(message, "create", "pods", namespace, name, 403, "Forbidden")

    def _error(
        self,
        message: str,
        verb: str,
        resource: str,
        namespace: str,
        name: str,
        code: int,
        reason: str,
        causes: Any = (),
    ) -> ApiError:
        where: Any = {"verb": verb, "resource": resource, "name": name, "namespace": namespace}
        return ApiError(message, code=code, reason=reason, causes=tuple(causes), **where)

    def _tell(self, type_: str, raw: Raw) -> None:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.history.append(Happening(self._version, type_, copy.deepcopy(raw)))

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self._version

    def _time(self, in_s: float) -> str:
        return datetime.fromtimestamp(int(self.clock.wall() + in_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _identity(manifest: Raw) -> tuple[Kind, str, str]:
    return KINDS[manifest["kind"]], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _key(raw: Raw) -> Key:
    return raw["kind"], raw["metadata"]["namespace"], raw["metadata"]["name"]


def _labels(raw: Raw) -> Mapping[str, str]:
    return raw["metadata"].get("labels") or {}


def _owners(raw: Raw) -> set[str]:
    return {owner["uid"] for owner in raw["metadata"].get("ownerReferences", [])}


def _controllers(raw: Raw) -> set[str]:
    return {owner["uid"] for owner in raw["metadata"].get("ownerReferences", []) if owner.get("controller")}


def _merged(known: Any, patch: Any, *, drop: bool = False) -> Any:
    """Maps are merged, all else is replaced; with `drop`, None removes a field."""
    if not isinstance(known, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = {key: copy.deepcopy(value) for key, value in known.items() if not (drop and patch.get(key, 0) is None)}
    for key, value in patch.items():
        if not (drop and value is None):
            merged[key] = _merged(known.get(key), value, drop=drop)
    return merged
