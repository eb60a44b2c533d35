"""What of a job may change while it lives: LIVE says it, and everything else is frozen.

A frozen field is refused by a rule on the object that holds it, so that setting it, or taking it out, is a change like
any other. Amounts are compared by what they mean: `1000m` for `1` is no change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from drumroll.api.base import ApiModel
from drumroll.api.pods import ResourceRequirements
from drumroll.api.quantity import parse_quantity
from drumroll.api.spec import RLJobSpec
from drumroll.api.tree import Node, children, value_at

LIVE = frozenset(
    {
        "spec.suspend",
        "spec.steps",
        "spec.targetPolicyLag",
        "spec.rollout.replicas",
        "spec.rollout.minReplicas",
        "spec.rollout.maxReplicas",
        "spec.rollout.restartPolicy",
        "spec.trainer.restartPolicy",
        "spec.scheduler.restartPolicy",
        "spec.pendingDeadlineSeconds",
        "spec.activeDeadlineSeconds",
        "spec.stallDeadlineSeconds",
        "spec.cleanup",
    }
)
"""Fields, each with all below it, that a running job acts on when they change."""

STEPS_STAY = "steps cannot be taken out while the job lives: write a number of steps"
STEPS_STAY_CEL = "!has(oldSelf.steps) || has(self.steps)"

_RESERVED = frozenset({"function", "in", "as", "if", "else", "for", "let", "var", "import", "namespace", "package"})
"""Names that CEL writes with underscores around them."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A field that cannot change while the job lives."""

    node: Node
    cel: str
    """Rule of the object that holds it."""

    @property
    def owner(self) -> str:
        """Path of that object."""
        return self.node.path.rpartition(".")[0]

    @property
    def message(self) -> str:
        """The sentence of refusal."""
        return (
            f"{self.node.path.removeprefix('spec.')} cannot change while the job lives: write what it was, or create "
            "another job (resumeFrom goes on from this one)"
        )


def is_live(path: str) -> bool:
    """Whether a running job acts on a change of this field."""
    return any(path == live or path.startswith((f"{live}.", f"{live}[")) for live in LIVE)


@cache
def frozen_fields() -> tuple[Frozen, ...]:
    """The largest parts of the spec that cannot change, in the order of its text."""
    return tuple(_frozen_below(RLJobSpec, "spec"))


@cache
def frozen_at(path: str) -> tuple[Frozen, ...]:
    """Those whose rule lies at this object."""
    return tuple(field for field in frozen_fields() if field.owner == path)


def refused_changes(old: RLJobSpec, new: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Field and sentence of every change that an API server refuses."""
    for field in frozen_fields():
        if _meaning(value_at(old, field.node.path), field.node) != _meaning(value_at(new, field.node.path), field.node):
            yield field.node.path, field.message
    if old.steps is not None and new.steps is None:
        yield "spec.steps", STEPS_STAY


def _frozen_below(model: type[ApiModel], path: str) -> Iterator[Frozen]:
    for node in children(model, path):
        if is_live(node.path):
            continue
        holds_live = any(live.startswith(f"{node.path}.") for live in LIVE)
        always_there = node.info.is_required() or node.has_default
        splits = node.model is not None and not node.is_list and node.model is not ResourceRequirements
        if node.model is not None and splits and always_there and (holds_live or _has_amounts(node.model)):
            yield from _frozen_below(node.model, node.path)
        else:
            yield Frozen(node, _unchanged(node, always_there))


def _has_amounts(model: type[ApiModel]) -> bool:
    """Whether amounts lie in it, on objects that are always there."""
    return any(
        node.model is ResourceRequirements
        or _is_amount(node)
        or (node.model is not None and not node.is_list and node.has_default and _has_amounts(node.model))
        for node in children(model, "")
    )


def _is_amount(node: Node) -> bool:
    return node.name in _amounts_of(node.owner)


@cache
def _amounts_of(model: type[ApiModel]) -> frozenset[str]:
    schemas = model.model_json_schema()["properties"]
    return frozenset(name for name, schema in schemas.items() if schema.get("x-kubernetes-int-or-string"))


def _unchanged(node: Node, always_there: bool) -> str:
    """CEL, on the object that holds the field: it is what it was."""
    name = f"__{node.name}__" if node.name in _RESERVED else node.name
    new, old = f"self.{name}", f"oldSelf.{name}"
    if node.model is ResourceRequirements:
        return " && ".join(_same_amounts(f"{new}.{part}", f"{old}.{part}") for part in ("requests", "limits"))
    same = _same_amount(new, old) if _is_amount(node) else f"{new} == {old}"
    return same if always_there else f"has({new}) == has({old}) && (!has({new}) || {same})"


def _same_amount(new: str, old: str) -> str:
    return f"quantity(string({new})).compareTo(quantity(string({old}))) == 0"


def _same_amounts(new: str, old: str) -> str:
    return f"size({new}) == size({old}) && {new}.all(k, k in {old} && {_same_amount(f'{new}[k]', f'{old}[k]')})"


def _meaning(value: Any, node: Node) -> Any:
    """A value in which equal amounts are equal, where the server's rule sees them so."""
    if isinstance(value, ResourceRequirements):
        parts = (value.requests, value.limits)
        return [{name: parse_quantity(amount) for name, amount in part.items()} for part in parts]
    return parse_quantity(value) if value is not None and _is_amount(node) else value
