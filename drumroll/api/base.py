"""What all models of the RLJob share: camelCase in files, snake_case in Python, nothing unknown, no contradiction."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from drumroll.api.quantity import QUANTITY_PATTERN
from drumroll.api.rule import Rule

Name = Annotated[str, Field(min_length=1, max_length=253)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Text = Annotated[str, Field(max_length=4096)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _whole_number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    Field(min_length=1, max_length=32, pattern=QUANTITY_PATTERN),
    BeforeValidator(_whole_number_as_text),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            "minimum": 0,
        }
    ),
]
"""A Kubernetes quantity, such as 8Gi or 500m; a whole number is taken as its text."""

RULES_LATER = "rules later"
"""Validation context of a caller that judges the rules by itself, to tell all broken ones at once."""


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

    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    """What must hold between the fields of this model."""

    @model_validator(mode="after")
    def _keep_rules(self, info: ValidationInfo) -> Self:
        if info.context == RULES_LATER:
            return self
        broken = [rule.explanation(self) for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError("contradiction", "{text}", {"text": "; ".join(broken)})
        return self

    def to_wire(self) -> dict[str, Any]:
        """The file's form: camelCase, without what is unset."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")
