"""Where a job keeps things: the sample stream, the ledger's store, the weights."""

from typing import Annotated, ClassVar

from pydantic import Field

from drumroll.api.base import ApiModel, Name, Quantity
from drumroll.api.patches import PodTemplatePatch
from drumroll.api.pods import ResourceRequirements
from drumroll.api.rule import Rule
from drumroll.api.rules import STREAM_RULES
from drumroll.api.running import Image, PersistentVolumeClaim


class EmbeddedStream(ApiModel):
    """A Valkey of the job's own."""

    max_bytes: Quantity = "1Gi"
    """Memory for samples; admission stops at 85 % of it."""
    image: Image | None = None
    """Image of its pod; default: the installation's. On a cluster only."""
    resources: ResourceRequirements = ResourceRequirements()
    """Of its pod; default: memory for maxBytes and what Valkey adds to it. On a cluster only."""
    pod_template_patch: PodTemplatePatch | None = None
    """Additions to its pod; default: none. On a cluster only."""


class Stream(ApiModel):
    """The sample stream and the ledger's store: embedded, or a Redis or Valkey by URL."""

    rules: ClassVar[tuple[Rule["Stream"], ...]] = STREAM_RULES

    embedded: EmbeddedStream = EmbeddedStream()
    """A Valkey of the job's own; used unless `url` is set."""
    url: Annotated[str, Field(max_length=2048)] | None = None
    """redis:// or rediss:// address without credentials (they go into secretRef)."""
    secret_ref: Name | None = None
    """Secret with `username` and `password` for `url`; locally a directory with files of these names."""
    ca_secret_ref: Name | None = None
    """Secret whose `ca.crt` holds the authorities that the certificate of a rediss:// `url` is checked against; locally
    a directory with a file of this name. Default: those of the system."""
    archive_samples: bool = True
    """Keep the trained samples beside the checkpoints, so that `drumroll replay` can run."""


class Volume(ApiModel):
    """Where weights, checkpoints and the archive live."""

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A claim that all pods can mount (ReadWriteMany); locally the run directory takes its place."""


class Weights(ApiModel):
    """Numbered weights."""

    volume: Volume = Volume()
    """Where they live."""
    publish_every_steps: Annotated[int, Field(ge=1, le=1000)] = 1
    """Steps between versions; at most maxPolicyLag + 1."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 4
    """Newest versions that are kept, beside those in use."""
