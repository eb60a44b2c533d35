"""What `podTemplatePatch` may set on the pods of a role: an allow-list.

The user, the capabilities, the namespaces of the host, its paths and the service account are not on it: a patch cannot
make a pod more powerful than Drumroll makes it. What it lists has the names and the meaning of the Kubernetes API.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumroll.api.affinity import Affinity, LabelKey, LabelSelector, LabelValue
from drumroll.api.base import ApiModel, Name, Quantity, Text
from drumroll.api.cluster_rules import (
    INIT_CONTAINER_RULES,
    PATCH_METADATA_RULES,
    PATCH_SPEC_RULES,
    PATCH_VOLUME_RULES,
    TOLERATION_RULES,
)
from drumroll.api.pod_rules import ENV_RULES
from drumroll.api.pods import Env, ResourceRequirements
from drumroll.api.rule import Rule
from drumroll.api.running import ConfigMapVolume, Image, ImageVolume, Label, MountPath

Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
SUB_PATH_PATTERN = r"^[.]?[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*(/[.]?[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*)*$"
SubPath = Annotated[str, Field(min_length=1, max_length=512, pattern=SUB_PATH_PATTERN)]
Arguments = Annotated[list[Text], Field(max_length=64)]


class PatchMetadata(ApiModel):
    """Labels and annotations of the pod."""

    rules: ClassVar[tuple[Rule["PatchMetadata"], ...]] = PATCH_METADATA_RULES

    labels: Labels = {}
    """Labels, beside Drumroll's own."""
    annotations: Annotated[dict[str, Text], Field(max_length=32)] = {}
    """Annotations."""


class Toleration(ApiModel):
    """A taint of nodes that the pod puts up with."""

    rules: ClassVar[tuple[Rule["Toleration"], ...]] = TOLERATION_RULES

    key: LabelKey | None = None
    """Key of the taint; default: all, which needs `operator: Exists`."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Whether the taint's value counts."""
    value: LabelValue | None = None
    """Value of the taint, with `operator: Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; default: all."""
    toleration_seconds: Annotated[int, Field(ge=0, le=100_000_000)] | None = None
    """How long a NoExecute taint is put up with; default: for ever."""


class TopologySpreadConstraint(ApiModel):
    """How evenly pods are spread over zones, racks or nodes."""

    max_skew: Annotated[int, Field(ge=1, le=10_000)]
    """Largest difference in pods between two domains."""
    topology_key: LabelKey
    """Label of nodes whose values are the domains."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Wait, or only prefer."""
    label_selector: LabelSelector
    """Pods that are counted."""
    min_domains: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Fewest domains, with DoNotSchedule."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether only nodes count that the pod's node affinity and selector take; default: Honor."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether only nodes count whose taints the pod puts up with; default: Ignore."""


class EmptyDir(ApiModel):
    """A directory that lives and dies with the pod."""

    medium: Literal["", "Memory"] = ""
    """The node's disk, or its memory, which then counts as the pod's."""
    size_limit: Quantity | None = None
    """The pod is evicted above it; default: no limit."""


class ClaimVolume(ApiModel):
    """An existing claim."""

    claim_name: Name
    """Name of a PersistentVolumeClaim in the job's namespace."""
    read_only: bool = False
    """Mount it read-only."""


class SecretVolume(ApiModel):
    """The keys of a Secret as files."""

    secret_name: Name
    """Name of a Secret in the job's namespace."""


class PatchVolume(ApiModel):
    """A volume of the pods of this role."""

    rules: ClassVar[tuple[Rule["PatchVolume"], ...]] = PATCH_VOLUME_RULES

    name: Label
    """Name of the volume; names that begin with drumroll are Drumroll's own."""
    empty_dir: EmptyDir | None = None
    """A directory of the pod's own."""
    persistent_volume_claim: ClaimVolume | None = None
    """An existing claim."""
    config_map: ConfigMapVolume | None = None
    """The keys of a ConfigMap."""
    secret: SecretVolume | None = None
    """The keys of a Secret."""
    image: ImageVolume | None = None
    """The files of an image."""


class VolumeMount(ApiModel):
    """Where a volume is found in a container."""

    name: Label
    """Name of a volume of this patch or of `spec.volumes`; drumroll-volume is the claim with weights and
    checkpoints."""
    mount_path: MountPath
    """Absolute path in the container."""
    sub_path: SubPath | None = None
    """Directory of the volume that is mounted; default: its root."""
    read_only: bool = False
    """Mount it read-only."""


VolumeMounts = Annotated[list[VolumeMount], Field(max_length=16)]


class InitContainer(ApiModel):
    """A container that runs to its end before the role's own starts, such as one that copies a model to a volume. It
    runs as the same user and under the same restrictions."""

    rules: ClassVar[tuple[Rule["InitContainer"], ...]] = (*INIT_CONTAINER_RULES, *ENV_RULES)

    name: Label
    """Name of the container; names that begin with drumroll are Drumroll's own."""
    image: Image
    """Its image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When it is pulled; default: Kubernetes' own."""
    command: Arguments = []
    """Entry point; default: the image's."""
    args: Arguments = []
    """Arguments."""
    working_dir: MountPath | None = None
    """Working directory; default: the image's."""
    env: Env = []
    """Its environment variables; those of `spec.env` are not among them."""
    resources: ResourceRequirements = ResourceRequirements()
    """What it is given."""
    volume_mounts: VolumeMounts = []
    """Its volumes."""


class PatchSpec(ApiModel):
    """What of the pod's spec may be set."""

    rules: ClassVar[tuple[Rule["PatchSpec"], ...]] = PATCH_SPEC_RULES

    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pod puts up with, beside those that Drumroll tolerates."""
    affinity: Affinity = Affinity()
    """Which nodes, and which other pods' company, are wanted or shunned."""
    topology_spread_constraints: Annotated[list[TopologySpreadConstraint], Field(max_length=8)] = []
    """How evenly pods are spread."""
    priority_class_name: Name | None = None
    """PriorityClass of the pod."""
    runtime_class_name: Name | None = None
    """RuntimeClass of the pod."""
    scheduler_name: Name | None = None
    """Kubernetes scheduler that places the pod."""
    init_containers: Annotated[
        list[InitContainer],
        Field(
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = []
    """Containers that run first, before Drumroll's own."""
    volumes: Annotated[
        list[PatchVolume],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = []
    """Volumes of the pod."""
    volume_mounts: VolumeMounts = []
    """Mounts of the role's own container."""


class PodTemplatePatch(ApiModel):
    """Additions to the pods of a role; what is not listed here cannot be set."""

    metadata: PatchMetadata = PatchMetadata()
    """Labels and annotations."""
    spec: PatchSpec = PatchSpec()
    """Placement, priority, volumes and init containers."""
