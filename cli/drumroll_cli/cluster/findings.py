"""What `drumroll doctor` has seen of a cluster, and the lines it says about it. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from drumroll.api.spec import RLJob

T = TypeVar("T")
Json = Mapping[str, Any]


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Line:
    """One check's result."""

    level: Level
    subject: str
    found: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that could not be looked at."""

    why: str


def ok(subject: str, found: str) -> Line:
    """Nothing to do."""
    return Line(Level.OK, subject, found)


def warn(subject: str, found: str, advice: str) -> Line:
    """May be in the way."""
    return Line(Level.WARN, subject, found, advice)


def fail(subject: str, found: str, advice: str) -> Line:
    """Jobs cannot run so."""
    return Line(Level.FAIL, subject, found, advice)


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource in the namespace."""

    verb: str
    resource: str
    """With its subresource, such as pods/log."""
    group: str = ""
    needed_for: str = ""
    """What does not work without; empty: nothing works."""


@dataclass(frozen=True, slots=True)
class OperatorSeen:
    """An installation of the chart."""

    namespace: str
    name: str
    version: str
    wanted: int
    available: int
    holder: str
    """Who holds the Lease; empty: nobody, or for too long without renewal."""
    settings: Json
    """Its settings file; empty where it cannot be read."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node's room for GPUs."""

    name: str
    usable: bool
    """Ready, and not cordoned."""
    gpus: int
    """Allocatable."""
    taints: tuple[tuple[str, str], ...] = ()
    """Key and effect of the taints that keep pods away."""


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A PersistentVolumeClaim."""

    name: str
    phase: str
    modes: tuple[str, ...]
    storage_class: str
    capacity: str


@dataclass(frozen=True, slots=True)
class Survey:
    """All that was seen. Lists are Unseen where one may not look."""

    context: str
    server: str
    namespace: str
    version: str
    """Of the API server, such as v1.37.2."""
    served_fields: frozenset[str] | Unseen
    """Paths of the spec of the served RLJob."""
    operators: Sequence[OperatorSeen] | Unseen
    jobs_seen: bool | None
    """Whether an operator has looked at a job of the namespace; None: there is none, or one may not look."""
    namespace_labels: Mapping[str, str] | Unseen | None
    """None: there is no such namespace."""
    namespace_terminating: bool
    rights: Mapping[Right, bool] | Unseen
    nodes: Sequence[NodeSeen] | Unseen
    gpus_taken: int | Unseen
    """GPUs that pods of the whole cluster hold."""
    claims: Sequence[ClaimSeen] | Unseen
    quotas: Sequence[Json] | Unseen
    limit_ranges: bool
    """Whether a LimitRange fills in what pods leave out, as far as can be seen."""
    secrets: Mapping[str, bool | Unseen] = field(default_factory=dict)
    """Secrets that jobs name: whether they are there."""
    config_maps: Mapping[str, bool | Unseen] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Job to the API server's refusal of a dry run; empty: it takes the job."""
    jobs: Sequence[RLJob] = ()
    """Of the file that was given."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Major and minor version of the API server."""
        parts = self.version.removeprefix("v").split(".")[:2]
        return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)

    def setting(self, name: str) -> Any:
        """A setting of the one operator whose settings can be read; None where there is none."""
        if isinstance(self.operators, Unseen):
            return None
        return next((operator.settings[name] for operator in self.operators if name in operator.settings), None)
