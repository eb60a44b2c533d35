"""The RLJob, version v1alpha1: the one source of the CRD, its defaults and its reference page.

Every field says its unit and its default. A field that does nothing does not exist.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from drumroll.api.base import ApiModel, Name, Path, Positive
from drumroll.api.cluster_rules import CLUSTER_RULES
from drumroll.api.learning import Algorithm, Checkpoint, Sampling, Trainer
from drumroll.api.patches import PodTemplatePatch
from drumroll.api.pod_rules import ENV_RULES
from drumroll.api.pods import Env, EnvVar, EnvVarSource, ResourceRequirements, SecretKeyRef
from drumroll.api.rule import Rule
from drumroll.api.rules import JOB_RULES, SPEC_RULES
from drumroll.api.running import (
    Cleanup,
    Deadline,
    ImagePullSecrets,
    JobVolume,
    PersistentVolumeClaim,
    RestartPolicy,
    SecurityContext,
    Volumes,
)
from drumroll.api.serving import Engine, ReplayEngine, Rollout, Scheduler
from drumroll.api.sources import Columns, Data, DataSource, EvalSource, Model, Reward, Task
from drumroll.api.storage import EmbeddedStream, Stream, Volume, Weights

__all__ = [
    "Algorithm",
    "Checkpoint",
    "Cleanup",
    "Columns",
    "Data",
    "DataSource",
    "EmbeddedStream",
    "Engine",
    "EnvVar",
    "EnvVarSource",
    "EvalSource",
    "JobVolume",
    "Model",
    "ObjectMeta",
    "PersistentVolumeClaim",
    "PodTemplatePatch",
    "RLJob",
    "RLJobSpec",
    "ReplayEngine",
    "ResourceRequirements",
    "RestartPolicy",
    "Reward",
    "Rollout",
    "Sampling",
    "Scheduler",
    "SecretKeyRef",
    "SecurityContext",
    "Stream",
    "Task",
    "Trainer",
    "Volume",
    "Weights",
]


class RLJobSpec(ApiModel):
    """What is wanted."""

    rules: ClassVar[tuple[Rule["RLJobSpec"], ...]] = (*SPEC_RULES, *CLUSTER_RULES, *ENV_RULES)

    model: Model
    """The policy's starting point."""
    data: Data
    """Prompts and their limits."""
    reward: Reward
    """How answers are scored."""
    sampling: Sampling = Sampling()
    """Sampling parameters of rollouts."""
    algorithm: Algorithm = Algorithm()
    """The update rule."""
    max_policy_lag: Annotated[int, Field(ge=0, le=1000)] = 2
    """Hard bound, in policy versions: no token older than this enters the loss. 0 is synchronous."""
    target_policy_lag: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Admission credit, in policy versions; the mean lag stays near it. Default: min(bound, max(1, bound // 2))."""
    lag_policy: Literal["wait", "drop", "mask"] = "wait"
    """What happens to a group that reaches the bound unfinished: the step waits, the group is dropped, or its old
    tokens are masked."""
    steps: Positive | None = None
    """Optimizer steps; at most one of steps and epochs, default: one epoch."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Passes over the data."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the plan and of everything drawn by Drumroll itself."""
    rollout: Rollout = Rollout()
    """The replicas that generate."""
    trainer: Trainer = Trainer()
    """The processes that learn."""
    scheduler: Scheduler = Scheduler()
    """Who generates what, and when."""
    stream: Stream = Stream()
    """The sample stream and the ledger's store."""
    weights: Weights = Weights()
    """Numbered weights."""
    env: Env = []
    """Environment variables of all roles."""
    resume_from: Path | None = None
    """Run directory or job folder whose newest checkpoint this job starts from, with a history of its own."""
    suspend: bool = False
    """Hold the job: its pods go after a checkpoint, and their GPUs with them; the store and the volumes stay. On a
    cluster only."""
    volumes: Volumes = []
    """Volumes of the scheduler, the trainer and the rollouts, where `path` fields may point. On a cluster only."""
    image_pull_secrets: ImagePullSecrets = []
    """Secrets that images are pulled with, beside the installation's. On a cluster only."""
    security_context: SecurityContext = SecurityContext()
    """The user that all pods run as. On a cluster only."""
    pending_deadline_seconds: Deadline | None = None
    """Longest time until the first step begins, before the job fails; default: none. On a cluster only."""
    active_deadline_seconds: Deadline | None = None
    """Longest time from the start to the end, suspended time not counted; default: none. On a cluster only."""
    stall_deadline_seconds: Deadline | None = None
    """Longest time without a step and without a new sample; default: none. On a cluster only."""
    cleanup: Cleanup = Cleanup()
    """What is kept after the end, and for how long. On a cluster only."""

    @property
    def resolved_epochs(self) -> int | None:
        """`epochs`, or 1 where neither it nor `steps` is set; None in a job given in steps."""
        return self.epochs if self.epochs is not None or self.steps is not None else 1

    def resolved(self) -> Self:
        """The same spec with the defaults that depend on other fields written out, as job.json holds it."""
        return self.model_copy(update={"epochs": self.resolved_epochs, "target_policy_lag": self.resolved_target_lag})

    @property
    def resolved_target_lag(self) -> int:
        """`targetPolicyLag`, or its default."""
        if self.target_policy_lag is not None:
            return self.target_policy_lag
        return min(self.max_policy_lag, max(1, self.max_policy_lag // 2))


class ObjectMeta(ApiModel):
    """Name and labels, as in any Kubernetes object."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    name: Name
    """Name of the job: lower case letters, digits and hyphens, a letter first; at most 40 characters, so that the names
    of its pods and Services fit."""
    namespace: Annotated[str, Field(max_length=63)] = "default"
    """Namespace."""
    uid: Annotated[str, Field(max_length=63)] | None = None
    """Set by the API server."""
    labels: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Labels."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Annotations."""


class RLJob(ApiModel):
    """An asynchronous RL post-training job."""

    rules: ClassVar[tuple[Rule["RLJob"], ...]] = JOB_RULES

    api_version: Literal["drumroll.dev/v1alpha1"]
    """drumroll.dev/v1alpha1"""
    kind: Literal["RLJob"]
    """RLJob"""
    metadata: ObjectMeta
    """Name and labels."""
    spec: RLJobSpec
    """What is wanted."""
