"""The operator's own settings: a YAML file that the chart renders, read once at the start.

They say what jobs get unless they say otherwise. No secret is in them, only the path of the file with the key from
which tokens and passwords are derived.
"""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from drumroll.api.base import ApiModel
from drumroll.errors import UserError

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


class Image(ApiModel):
    """An image of the product."""

    reference: Annotated[str, Field(min_length=1, max_length=1024)]
    """Registry, repository and tag or digest."""
    pull_policy: PullPolicy = "IfNotPresent"
    """When the node asks the registry."""


class Images(ApiModel):
    """Images by role; the store runs in the scheduler's."""

    scheduler: Image
    """Scheduler, store and the preparation of data."""
    rollout: Image
    """Rollout replicas."""
    trainer: Image
    """Trainer pods."""


class PullSecret(ApiModel):
    """A Secret of type kubernetes.io/dockerconfigjson in the namespace of the jobs."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name."""


class PodSecurity(ApiModel):
    """User and groups of all pods of a job; what is unset is left to the image and the platform."""

    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = 10001
    """User id."""
    run_as_group: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = 10001
    """Group id."""
    fs_group: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = 10001
    """Group that owns volumes, where the volume supports it."""


class OperatorSettings(ApiModel):
    """All of them."""

    images: Images
    """Images of the job's pods."""
    image_pull_secrets: list[PullSecret] = []
    """For the pods of every job; a job's own come on top."""
    pod_security: PodSecurity = PodSecurity()
    """User and groups, unless the job has a securityContext."""
    default_claim: Annotated[str | None, BeforeValidator(_empty_is_none)] = None
    """PersistentVolumeClaim in the job's namespace, where the job names none."""
    cluster_domain: Annotated[str, Field(min_length=1, max_length=253)] = "cluster.local"
    """Domain of the cluster's DNS."""
    network_policies: bool = True
    """Make NetworkPolicies for each job."""
    tls: bool = False
    """Encrypt what a job's pods say to each other."""
    key_file: Path = Path("/var/run/secrets/drumroll-operator/key")
    """File with the key from which tokens and passwords of jobs are derived."""
    watch_namespaces: list[Annotated[str, Field(min_length=1, max_length=63)]] = []
    """Namespaces to look after; empty: all."""
    operator_namespace: Annotated[str, Field(min_length=1, max_length=63)] = "drumroll"
    """Where the operator runs: its pods may call the schedulers."""
    operator_labels: dict[str, str] = {"app.kubernetes.io/name": "drumroll", "app.kubernetes.io/component": "operator"}
    """Labels of its pods."""

    @classmethod
    def load(cls, path: Path) -> "OperatorSettings":
        """Read the file.

        Raises:
            UserError: it cannot be read, or a field is wrong or unknown.
        """
        try:
            return cls.model_validate(yaml.safe_load(path.read_text()))
        except (OSError, yaml.YAMLError, ValidationError) as error:
            raise UserError(f"the operator's settings in {path} cannot be used: {error}") from error
