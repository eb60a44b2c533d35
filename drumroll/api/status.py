"""What an RLJob's status says. The operator writes it; `kubectl get rlj` shows its columns."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from drumroll.api.base import ApiModel

Whole = Annotated[int, Field(ge=0, le=2**53)]
Phase = Literal["Pending", "Starting", "Running", "Suspended", "Complete", "Failed"]


class Condition(ApiModel):
    """One aspect of the job, as in any Kubernetes object."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]
    """What it is about, such as TrainerReady."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one word for programs."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """Why, in a sentence for people."""
    last_transition_time: datetime
    """When its status last changed."""
    observed_generation: Whole | None = None
    """Generation of the spec that it was judged by."""


class PolicyLag(ApiModel):
    """Lag of the samples of the newest trained step, in policy versions."""

    min: Whole = 0
    """Smallest."""
    mean: Annotated[float, Field(ge=0.0, le=1.0e6)] = 0.0
    """Mean over tokens that entered the loss."""
    max: Whole = 0
    """Largest; never above maxPolicyLag."""


class RolloutStatus(ApiModel):
    """The replicas that generate."""

    replicas: Whole = 0
    """Replicas that exist."""
    ready: Whole = 0
    """Replicas that hold an admissible weight version and take leases."""
    draining: Whole = 0
    """Replicas that finish or hand back their samples and then end."""
    summary: Annotated[str, Field(max_length=64)] = ""
    """ready/replicas, for the printed column."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the rollout pods, for autoscalers."""


class TrainerStatus(ApiModel):
    """The processes that learn."""

    replicas: Whole = 0
    """Pods that exist."""
    ready: Whole = 0
    """Pods that are ready."""
    set_number: Whole = 0
    """Number of the current set of trainer pods: one more each time that all of them are replaced."""


class RoleRestarts(ApiModel):
    """Failures of a role's pods that count, within the window of its restartPolicy."""

    role: Literal["store", "scheduler", "trainer", "rollout"]
    """The role."""
    count: Whole = 0
    """Failures within the window."""
    window_start: datetime | None = None
    """When the window began: the first of these failures."""
    last_reason: Annotated[str, Field(max_length=1024)] = ""
    """Why the newest one ended, in one word for programs."""
    last_message: Annotated[str, Field(max_length=4096)] = ""
    """Why the newest one ended, in a sentence for people."""
    last_time: datetime | None = None
    """When the newest one ended."""
    charged_uids: Annotated[list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=1024)] = []
    """Pods that are in the count and still to be deleted: none is counted twice."""


class RLJobStatus(ApiModel):
    """What was observed."""

    observed_generation: Whole | None = None
    """Generation of the spec that this status was made from."""
    phase: Phase | None = None
    """The conditions in one word."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = []
    """Aspects of the job, each with its reason."""
    step: Whole | None = None
    """Optimizer steps that were committed."""
    steps: Whole | None = None
    """Optimizer steps of the whole job."""
    version: Whole | None = None
    """Newest policy version."""
    policy_lag: PolicyLag | None = None
    """Lag of the samples of the newest trained step."""
    samples: Whole | None = None
    """Samples that the scheduler has accepted."""
    eta_seconds: Whole | None = None
    """Time to the last step at the pace of late, in seconds."""
    gpus: Whole | None = None
    """GPUs that the job's pods hold."""
    rollout: RolloutStatus | None = None
    """The replicas that generate."""
    trainer: TrainerStatus | None = None
    """The processes that learn."""
    restarts: Annotated[
        list[RoleRestarts],
        Field(
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["role"]},
        ),
    ] = []
    """Failures that count, by role."""
    config: Annotated[str, Field(max_length=253)] | None = None
    """ConfigMap that holds the newest revision of job.json."""
    job_dir: Annotated[str, Field(max_length=4096)] | None = None
    """Folder of the job on its volume, as its pods see it."""
    message: Annotated[str, Field(max_length=32_768)] | None = None
    """What the job is doing or waiting for, in a sentence."""
    start_time: datetime | None = None
    """When the first process started."""
    end_time: datetime | None = None
    """When the job completed or failed."""
    last_progress_time: datetime | None = None
    """When a step was committed or a new sample came, last."""
    suspended_seconds: Annotated[float, Field(ge=0.0, le=1.0e12)] = 0.0
    """Time that the job was suspended; no deadline counts it."""
