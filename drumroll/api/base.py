"""What every model of the RLJob has in common: camelCase in files, snake_case in Python, nothing unknown."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Name = Annotated[str, Field(min_length=1, max_length=253)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Text = Annotated[str, Field(max_length=4096)]
Quantity = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[+-]?[0-9]*\.?[0-9]+([KMGTPE]i?|[munkEe]|[eE][+-]?[0-9]+)?$")
]
"""A Kubernetes quantity, such as 8Gi or 500m."""


class ApiModel(BaseModel):
    """Base of all parts of an RLJob; frozen once it has been validated."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    def to_wire(self) -> dict[str, Any]:
        """The file's form: camelCase, without what is unset."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")
