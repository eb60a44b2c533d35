"""How a job lives on a cluster: restarts, clean-up, identity, and volumes of its pods."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumroll.api.base import ApiModel, Name
from drumroll.api.cluster_rules import JOB_VOLUME_RULES
from drumroll.api.rule import Rule

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
IMAGE_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?$"
MOUNT_PATH_PATTERN = r"^(/[.]?[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*)+$"

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
"""A name of at most 63 lower case letters, digits and hyphens."""
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=IMAGE_PATTERN)]
MountPath = Annotated[str, Field(min_length=1, max_length=512, pattern=MOUNT_PATH_PATTERN)]
Seconds = Annotated[int, Field(ge=0, le=100_000_000)]
Deadline = Annotated[int, Field(ge=1, le=100_000_000)]
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]


class RestartPolicy(ApiModel):
    """How often pods of a role may fail before the job does. Evictions, preemptions and lost nodes do not count."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 10
    """Failures of one pod within the window that are healed by a new pod; one more fails the job."""
    window_seconds: Annotated[int, Field(ge=1, le=10_000_000)] = 3600
    """Length of the window; what lies further back is forgotten."""


class CleanupOnSuccess(ApiModel):
    """What is kept of a job that completed, and for how long. Its volumes are never deleted."""

    pods_seconds: Seconds = 3600
    """Time that ended pods stay for their logs; running ones, and so their GPUs, go at once."""
    store_seconds: Seconds = 0
    """Time that the embedded store stays; it is archived on the volume by then."""
    job_seconds: Seconds | None = None
    """Time until the RLJob itself is deleted; default: never."""


class CleanupOnFailure(ApiModel):
    """What is kept of a job that failed, and for how long. Its volumes are never deleted."""

    pods_seconds: Seconds = 86_400
    """Time that ended pods stay for their logs; running ones, and so their GPUs, go at once."""
    store_seconds: Seconds = 3600
    """Time that the embedded store stays."""
    job_seconds: Seconds | None = None
    """Time until the RLJob itself is deleted; default: never."""


class Cleanup(ApiModel):
    """What is kept after the end, counted from the end."""

    on_success: CleanupOnSuccess = CleanupOnSuccess()
    """After Complete."""
    on_failure: CleanupOnFailure = CleanupOnFailure()
    """After Failed."""


class SecurityContext(ApiModel):
    """The user that all pods of the job run as. Everything else of their security is fixed, and nothing loosens it."""

    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """User id, never 0; default: the installation's."""
    run_as_group: Id | None = None
    """Group id; default: the installation's."""
    fs_group: Id | None = None
    """Group that owns what is written to volumes; default: the installation's."""
    supplemental_groups: Annotated[list[Id], Field(max_length=16)] = []
    """Further groups, such as the one that owns a shared file system."""


class ImagePullSecret(ApiModel):
    """A Secret of type kubernetes.io/dockerconfigjson in the job's namespace."""

    name: Name
    """Name of the Secret."""


class ImageVolume(ApiModel):
    """The files of a container image, mounted read-only."""

    reference: Image
    """Image, best with its digest."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When it is pulled."""


class ConfigMapVolume(ApiModel):
    """The keys of a ConfigMap as files."""

    name: Name
    """Name of a ConfigMap in the job's namespace."""


class PersistentVolumeClaim(ApiModel):
    """An existing claim."""

    claim_name: Name
    """Name of a PersistentVolumeClaim in the job's namespace."""


class JobVolume(ApiModel):
    """A volume of the scheduler, the trainer and the rollouts, for models, data and reward functions."""

    rules: ClassVar[tuple[Rule["JobVolume"], ...]] = JOB_VOLUME_RULES

    name: Label
    """Name of the volume; names that begin with drumroll are Drumroll's own."""
    mount_path: MountPath
    """Absolute path where it is found in all these pods."""
    read_only: bool = True
    """Whether pods can only read it."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """An existing claim that all pods can mount."""
    image: ImageVolume | None = None
    """The files of an image."""
    config_map: ConfigMapVolume | None = None
    """The keys of a ConfigMap."""


Volumes = Annotated[
    list[JobVolume],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]
"""Volumes, each name once."""
ImagePullSecrets = Annotated[
    list[ImagePullSecret],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]
"""Secrets, each name once."""
