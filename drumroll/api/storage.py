"""Where a job keeps things: the sample stream, the ledger's store, the weights."""

from typing import Annotated, ClassVar

from pydantic import Field

from drumroll.api.base import ApiModel, Name, Quantity
from drumroll.api.rule import Rule
from drumroll.api.rules import STREAM_RULES


class EmbeddedStream(ApiModel):
    """A Valkey of the job's own."""

    max_bytes: Quantity = "1Gi"
    """Memory for samples; admission stops at 85 % of it."""


class Stream(ApiModel):
    """The sample stream and the ledger's store: embedded, or a Redis or Valkey by URL."""

    rules: ClassVar[tuple[Rule["Stream"], ...]] = STREAM_RULES

    embedded: EmbeddedStream = EmbeddedStream()
    """A Valkey of the job's own; used unless `url` is set."""
    url: Annotated[str, Field(max_length=2048)] | None = None
    """redis:// or rediss:// address without credentials (they go into secretRef)."""
    secret_ref: Name | None = None
    """Secret with `username` and `password` for `url`; locally a directory with files of these names."""
    archive_samples: bool = True
    """Keep the trained samples beside the checkpoints, so that `drumroll replay` can run."""


class PersistentVolumeClaim(ApiModel):
    """An existing claim."""

    claim_name: Name
    """Name of a PersistentVolumeClaim in the job's namespace."""


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
