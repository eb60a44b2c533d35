"""The pods of all jobs as views, by job. Fed by the watch and by the answers to the operator's own writes.

The newest state wins, whoever brings it: resourceVersions are compared, and a pod that is gone never comes back.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from drumroll_operator import labels
from drumroll_operator.cluster import Raw
from drumroll_operator.observed import PodView
from drumroll_operator.pod_view import pod_view
from drumroll_operator.watch import ObjectName, object_name

_REMEMBERED_ENDS = 4096


@dataclass(frozen=True, slots=True)
class _Entry:
    view: PodView
    version: int
    job: str
    ip: str


class PodCache:
    """A Sink of pods."""

    def __init__(self, on_change: Callable[[ObjectName], None]) -> None:
        self._on_change = on_change
        self._pods: dict[ObjectName, _Entry] = {}
        self._names: dict[ObjectName, set[str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pods)

    def of_job(self, job: ObjectName) -> tuple[PodView, ...]:
        """Pods that bear the label of a job's name, whatever their owner."""
        return tuple(self._pods[job[0], name].view for name in sorted(self._names.get(job, ())))

    def has_any(self, job: ObjectName) -> bool:
        """Whether a job has pods."""
        return job in self._names

    def address(self, pod: ObjectName) -> str | None:
        """IP of a pod; None before it has one."""
        entry = self._pods.get(pod)
        return entry.ip or None if entry is not None else None

    def changed(self, raw: Raw) -> None:
        """See Sink."""
        name, version = object_name(raw), version_of(raw)
        known = self._pods.get(name)
        if raw["metadata"]["uid"] in self._gone or (known is not None and version <= known.version):
            return
        job = (raw["metadata"].get("labels") or {}).get(labels.JOB, "")
        if known is not None and known.job != job:
            self._drop(name)
        ip = (raw.get("status") or {}).get("podIP", "")
        entry = _Entry(pod_view(raw), version, job, ip)
        self._pods[name] = entry
        self._names.setdefault((name[0], job), set()).add(name[1])
        if known is None or known.view != entry.view or known.ip != ip:
            self._on_change((name[0], job))

    def deleted(self, raw: Raw) -> None:
        """See Sink."""
        self.gone(object_name(raw), raw["metadata"]["uid"])

    def gone(self, name: ObjectName, uid: str) -> None:
        """A pod is known to be no more."""
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED_ENDS:
            self._gone.popitem(last=False)
        known = self._pods.get(name)
        if known is not None and known.view.uid == uid:
            self._drop(name)

    def listed(self, namespace: str | None, present: set[ObjectName], resource_version: str) -> None:
        """See Sink."""
        version = int(resource_version)
        for name, entry in list(self._pods.items()):
            if namespace in (None, name[0]) and name not in present and entry.version <= version:
                self._drop(name)

    def _drop(self, name: ObjectName) -> None:
        entry = self._pods.pop(name)
        job = (name[0], entry.job)
        self._names[job].discard(name[1])
        if not self._names[job]:
            del self._names[job]
        self._on_change(job)


def version_of(raw: Raw) -> int:
    """The resourceVersion as the number that it is; versions of one resource are ordered."""
    return int(raw["metadata"]["resourceVersion"])
