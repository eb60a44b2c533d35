"""What the plan is made from: one job, its pods, its scheduler's word and what went wrong lately. Frozen values only.

All times are Unix seconds of the API server's or this process's clock. The shell keeps three promises. The status is at
least as new as the last one that it wrote itself. Pods hold the answers to its own creates and deletes at once, before
the watch tells of them. Everything here may otherwise be stale: the plan stays right, and converges when news arrive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from drumroll.api.spec import RLJobSpec
from drumroll.api.status import RLJobStatus
from drumroll_operator.substrate import Role


class PodPhase(StrEnum):
    """`status.phase` of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a pod's container ended: the init container's end if that one failed, else the main container's."""

    code: int
    reason: str = ""
    """The kubelet's word, such as OOMKilled, Error, Completed."""
    message: str = ""
    """The termination message: the process's last words."""
    at: float = 0.0
    """When."""


@dataclass(frozen=True, slots=True)
class PodView:
    """The little of a pod that decisions need. Labels, owner and spec as they are on the object."""

    name: str
    uid: str
    job_uid: str
    """Label `drumroll.dev/uid`, and the owner reference's uid agrees; else empty: not one of ours."""
    role: Role | None
    """Label `drumroll.dev/role`."""
    index: int = 0
    """Label `drumroll.dev/index`."""
    set_number: int = 0
    """Label `drumroll.dev/set` of trainer pods; 0: none."""
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    created: float = 0.0
    started: float | None = None
    """When its main container last started."""
    delete_by: float | None = None
    """`deletionTimestamp`: when its grace is over. None: not being deleted."""
    node: str = ""
    """Empty until it is bound."""
    bound_at: float | None = None
    """When it was (transition of PodScheduled)."""
    gpus: int = 0
    """GPUs of its limits, all containers together."""
    memory_limit: str = ""
    """Memory limit of the main container, as written."""
    config: str = ""
    """Name of the ConfigMap with job.json that it mounts."""
    unschedulable: str = ""
    """Message of PodScheduled=False with reason Unschedulable."""
    waiting: str = ""
    """Reason for which a container waits, such as ImagePullBackOff, ContainerCreating, PodInitializing."""
    waiting_message: str = ""
    exit: Exit | None = None
    reason: str = ""
    """`status.reason`, such as Evicted, NodeLost, Terminated, UnexpectedAdmissionError."""
    message: str = ""
    """`status.message`."""
    disruption: str = ""
    """Reason of a true DisruptionTarget condition, such as PreemptionByScheduler; empty: none."""
    disruption_message: str = ""

    @property
    def ended(self) -> bool:
        """Its containers run no more and never will again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def deleting(self) -> bool:
        """Somebody asked for its deletion."""
        return self.delete_by is not None

    @property
    def live(self) -> bool:
        """Runs or will run, and nobody wants it gone."""
        return not self.ended and not self.deleting

    @property
    def ended_at(self) -> float:
        """When its container ended, as far as is known; else when it was made."""
        return self.exit.at if self.exit is not None and self.exit.at else self.created


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """What the scheduler knows of a rollout replica."""

    name: str
    """DRUMROLL_REPLICA, such as rollout-0."""
    version: int | None = None
    """Version that it attested; None: none yet."""
    draining: bool = False
    tokens_in_flight: int = 0
    """Tokens of unfinished samples that would have to be handed over or lost; the number of leases where unknown."""
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lag:
    """Policy lag of the newest trained step, in versions."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The scheduler's answer to a status call."""

    at: float
    """When it was given."""
    phase: str = "Starting"
    """Starting | Running | Complete | Failed. An ended job becomes terminal when the scheduler pod has ended as well,
    with everything archived."""
    reason: str = ""
    steps_done: int = 0
    steps_total: int = 0
    version: int = 0
    """Newest policy version."""
    published: int | None = None
    """Newest announced weights; None: none yet."""
    lineage: int = 0
    samples: int = 0
    """Accepted samples since the job's beginning (gauge accepted_count)."""
    seconds_per_step: float | None = None
    """Mean of the last steps; None: unknown."""
    lag: Lag | None = None
    trainer_registered: bool = False
    replicas: tuple[ReplicaProgress, ...] = ()
    store_failing: bool = False
    """The store does not take what the scheduler writes."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Live values (steps, replicas, target_policy_lag) that it works with, as far as its status names them."""


class FailureKind(StrEnum):
    """Why an action was refused or not done."""

    QUOTA = "Quota"
    """403 of the quota admission ("exceeded quota")."""
    FORBIDDEN = "Forbidden"
    """403: the operator lacks a right."""
    DENIED = "Denied"
    """403, 400 or 422 of an admission step: Pod Security, a webhook, a policy, LimitRanger."""
    INVALID = "Invalid"
    """400 or 422: the API server finds the object itself wrong."""
    NAME_TAKEN = "NameTaken"
    """409 of a create, or 422 about a second controller: the name belongs to an object of someone else."""
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    """403 with cause NamespaceTerminating, or 404 of the namespace."""
    CONFLICT = "Conflict"
    """409 of a delete or a status write: the view was old."""
    UNAVAILABLE = "Unavailable"
    """Time-outs, refused connections, 429, 5xx."""
    REFUSED = "Refused"
    """The scheduler refused a live value; message says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of an action that has not succeeded since. Kept by the shell per job and action key."""

    key: str
    """Key of the action."""
    kind: FailureKind
    verb: str
    """create | patch | delete | set."""
    resource: str
    """Plural, such as pods, configmaps, rljobs/status."""
    name: str
    """Name of the object."""
    message: str
    """The server's."""
    at: float
    count: int = 1
    """Failures in a row."""


@dataclass(frozen=True, slots=True)
class Child:
    """An object other than a pod that the job wants: ConfigMap, Secret, Service, PDB, NetworkPolicy."""

    kind: str
    name: str
    digest: str
    """Of its manifest; the same digest needs no second write."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What the shell wrote last of a child. Lost with the process, which is harmless: writing again changes nothing."""

    child: Child
    at: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the job cannot be rendered."""

    reason: str
    """A constant of `reasons`, such as InvalidSpec or NoVolume."""
    message: str


@dataclass(frozen=True, slots=True)
class JobView:
    """The RLJob itself."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    spec: RLJobSpec | None
    """None: it does not parse; then `Observed.refusal` says why."""
    status: RLJobStatus = field(default_factory=RLJobStatus)
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """All that one plan is made from."""

    now: float
    job: JobView
    pods: tuple[PodView, ...] = ()
    """Pods with label `drumroll.dev/job` of this job's name, whatever their uid."""
    progress: Progress | None = None
    """The last answer of this job's scheduler, however old; None: none since this operator started."""
    unanswered_since: float | None = None
    """When the scheduler was first asked in vain since its last answer; None: it answers or was not asked."""
    refusal: Refusal | None = None
    children: tuple[Child, ...] = ()
    """What the job wants, in order of application; empty while it is refused."""
    config: str = ""
    """Name of the newest revision of the ConfigMap with job.json: one of `children`."""
    job_dir: str = ""
    """The job's folder, as its pods see it."""
    applied: tuple[Applied, ...] = ()
    """What was applied, of this uid; with it also revisions that are no longer wanted."""
    live_set: Mapping[str, int] = field(default_factory=dict)
    """Live values that the scheduler acknowledged to this operator."""
    failures: tuple[Failure, ...] = ()
    status_written: float | None = None
    """When this operator last wrote the job's status; None: not yet."""
    since: float = 0.0
    """When this operator began to look after the job."""
