"""What a pod of any role may be given: resources and environment variables."""

from typing import Annotated, ClassVar

from pydantic import Field

from drumroll.api.base import ApiModel, Name, Quantity, Text
from drumroll.api.pod_rules import ENV_VAR_RULES, GPU, RESOURCES_RULES
from drumroll.api.quantity import parse_quantity
from drumroll.api.rule import Rule

Resources = Annotated[dict[Name, Quantity], Field(max_length=16)]


class ResourceRequirements(ApiModel):
    """Kubernetes resource requirements of one pod."""

    rules: ClassVar[tuple[Rule["ResourceRequirements"], ...]] = RESOURCES_RULES

    requests: Resources = {}
    """What is reserved."""
    limits: Resources = {}
    """What is allowed; `nvidia.com/gpu` also says how many GPUs a local process gets."""

    @property
    def gpus(self) -> int:
        """GPUs of one pod; 0 where none are asked for."""
        return int(parse_quantity(self.limits.get(GPU, "0")))


class SecretKeyRef(ApiModel):
    """A key of a Secret in the job's namespace."""

    name: Name
    """Name of the Secret."""
    key: Name
    """Key in its data."""


class EnvVarSource(ApiModel):
    """Where an environment variable's value comes from."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret; locally the variable of the same name in your shell."""


class EnvVar(ApiModel):
    """An environment variable of the role's processes."""

    rules: ClassVar[tuple[Rule["EnvVar"], ...]] = ENV_VAR_RULES

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
    """Name of the variable; names that begin with DRUMROLL_ are Drumroll's own."""
    value: Text | None = None
    """Its value, readable by everyone who may read the job. Use valueFrom for secrets."""
    value_from: EnvVarSource | None = None
    """Where the value is found."""


Env = Annotated[
    list[EnvVar],
    Field(
        max_length=128,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]
"""Environment variables, each name once."""
