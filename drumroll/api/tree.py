"""The tree of an RLJob's fields, read from its models: for the CRD, the reference page and helpful error messages.

Paths are written as in files: `spec.rollout.env[].name`; `[]` stands for any item of a list.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from drumroll.api.base import ApiModel
from drumroll.api.rule import Rule
from drumroll.api.spec import RLJob, RLJobSpec


@dataclass(frozen=True, slots=True)
class Node:
    """A field of the tree."""

    path: str
    name: str
    """Last part of the path, in camelCase."""
    info: FieldInfo
    owner: type[ApiModel]
    model: type[ApiModel] | None
    """The model of its value, or of its items; None for plain values."""
    is_list: bool

    @property
    def description(self) -> str:
        """The field's documentation in one line."""
        return " ".join((self.info.description or "").split())

    @property
    def has_default(self) -> bool:
        """Whether it may be left out and then has a value of its own."""
        return not self.info.is_required() and self.default is not None

    @property
    def default(self) -> Any:
        """Its default; None where there is none."""
        return None if self.info.is_required() else self.info.get_default(call_default_factory=True)


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a job breaks."""

    location: tuple[str | int, ...]
    """Where the model lies that breaks it."""
    rule: Rule[Any]
    message: str

    def parts(self, field: str) -> tuple[str | int, ...]:
        """The location of one of the fields that the rule speaks of."""
        return (*self.location, *(part for part in field.split(".") if part))


def model_of(annotation: Any) -> tuple[type[ApiModel] | None, bool]:
    """The model inside an annotation, and whether a list of it is meant."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return model_of(get_args(annotation)[0])
    if origin is list:
        return model_of(get_args(annotation)[0])[0], True
    if origin in (Union, types.UnionType):
        found = (model_of(part) for part in get_args(annotation) if part is not type(None))
        return next(((model, is_list) for model, is_list in found if model or is_list), (None, False))
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation, False
    return None, False


def children(model: type[ApiModel], prefix: str) -> list[Node]:
    """The fields of one model, in the order of its text."""
    nodes = []
    for name, info in model.model_fields.items():
        alias = info.alias or name
        child, is_list = model_of(info.annotation)
        nodes.append(Node(f"{prefix}.{alias}" if prefix else alias, alias, info, model, child, is_list))
    return nodes


def walk(model: type[ApiModel], prefix: str) -> Iterator[Node]:
    """All fields below a model, parents first."""
    for node in children(model, prefix):
        yield node
        if node.model is not None:
            yield from walk(node.model, f"{node.path}[]" if node.is_list else node.path)


@cache
def spec_nodes() -> dict[str, Node]:
    """Every field of the spec by its path."""
    return {node.path: node for node in walk(RLJobSpec, "spec")}


def value_at(spec: RLJobSpec, path: str) -> Any:
    """The value of a field that lies in no list; `path` as in files, such as `spec.rollout.replicas`.

    None where an object on the way is left out.
    """
    value: Any = spec
    for part in path.split(".")[1:]:
        if value is None:
            return None
        value = getattr(value, next(name for name, info in type(value).model_fields.items() if info.alias == part))
    return value


@cache
def models_by_path() -> dict[str, type[ApiModel]]:
    """Every model of a job but its metadata, by the path of its place; the job itself lies at the empty path."""
    nested = {f"{n.path}[]" if n.is_list else n.path: n.model for n in spec_nodes().values() if n.model}
    return {"": RLJob, "spec": RLJobSpec, **nested}


def placed_rules() -> Iterator[tuple[str, Rule[Any]]]:
    """Every rule at every place where it holds."""
    for path, model in models_by_path().items():
        for rule in model.rules:
            yield path, rule


def broken_rules(model: ApiModel, location: tuple[str | int, ...] = ()) -> Iterator[Broken]:
    """Every rule that a model, or one inside it, breaks; parents first."""
    for rule in model.rules:
        if not rule.holds(model):
            yield Broken(location, rule, rule.explanation(model))
    for name, info in type(model).model_fields.items():
        value, alias = getattr(model, name), info.alias or name
        if isinstance(value, ApiModel):
            yield from broken_rules(value, (*location, alias))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ApiModel):
                    yield from broken_rules(item, (*location, alias, index))
