"""What a plan asks for. The shell writes the status first, then does the actions in order, and stops at the first that
fails: it records the failure under the action's key and plans again.

An action holds names, not manifests: the shell renders them. Each may be done twice without harm.
"""

from dataclasses import dataclass
from typing import Literal

from drumroll.api.status import RLJobStatus
from drumroll_operator.observed import Child
from drumroll_operator.substrate import Role


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child of `Observed.children`."""

    child: Child

    @property
    def key(self) -> str:
        return f"apply {self.child.kind} {self.child.name}"


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Delete a child that this job no longer wants (an old revision of the ConfigMap). Not found is success."""

    child: Child

    @property
    def key(self) -> str:
        return f"delete {self.child.kind} {self.child.name}"


@dataclass(frozen=True, slots=True)
class CreatePod:
    """POST of a pod. 409 with a pod of this job's uid is success (the shell takes that pod into its view); 409 with
    another's is a failure of kind NAME_TAKEN."""

    role: Role
    index: int
    name: str
    set_number: int = 0
    """Value of the label `drumroll.dev/set` for trainer pods; 0: no label."""

    @property
    def key(self) -> str:
        return f"create Pod {self.name}"


@dataclass(frozen=True, slots=True)
class DeletePod:
    """DELETE with the uid as precondition. Not found, or a conflict of the uid, is success (the view was old)."""

    name: str
    uid: str
    grace_s: int | None = None
    """None: the pod's own; 0: by force."""

    @property
    def key(self) -> str:
        return f"delete Pod {self.name}"


@dataclass(frozen=True, slots=True)
class SetLive:
    """Tell the scheduler a live value: steps, replicas or target_policy_lag."""

    name: str
    value: int

    @property
    def key(self) -> str:
        return f"set {self.name}"


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """DELETE of the RLJob itself with its uid as precondition: its time after the end is over."""

    uid: str

    @property
    def key(self) -> str:
        return "delete RLJob"


@dataclass(frozen=True, slots=True)
class Record:
    """An Event about the job. Never fails for the plan: a recorder that cannot post logs it once."""

    type: Literal["Normal", "Warning"]
    reason: str
    """A constant of `reasons`."""
    message: str
    """At most 1,024 bytes of UTF-8, no NUL."""

    @property
    def key(self) -> str:
        return f"event {self.reason}"


Action = Apply | DeleteChild | CreatePod | DeletePod | SetLive | DeleteJob | Record


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to look again at the latest."""

    actions: tuple[Action, ...] = ()
    status: RLJobStatus | None = None
    """The whole status to write before any action, tested against the resourceVersion that was observed; None: the
    stored one stands. If the write fails, no action is done and the job is planned again."""
    requeue_s: float | None = None
    """Seconds until something is due by time alone; None: nothing is."""
