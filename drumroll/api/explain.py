"""Pydantic's errors, told as sentences that name the field, its value and what to write instead."""

import json
import math
import re
from typing import Any

from pydantic_core import ErrorDetails

from drumroll.api.affinity import LABEL_VALUE_PATTERN
from drumroll.api.cluster_rules import LABEL_KEY_PATTERN
from drumroll.api.names import advise
from drumroll.api.patches import SUB_PATH_PATTERN
from drumroll.api.problems import Location, dotted, shown
from drumroll.api.running import IMAGE_PATTERN, LABEL_PATTERN, MOUNT_PATH_PATTERN
from drumroll.api.tree import Broken, Node, spec_nodes

_MAIN_FIELD = {
    "model": "path",
    "train": "path",
    "eval": "path",
    "reward": "type",
    "algorithm": "type",
    "rollout": "replicas",
    "trainer": "replicas",
    "scheduler": "planner",
    "engine": "type",
    "stream": "url",
    "embedded": "maxBytes",
    "checkpoint": "everySteps",
    "valueFrom": "secretKeyRef",
    "persistentVolumeClaim": "claimName",
}
"""What somebody most likely means who writes a plain value where an object is expected."""

EXAMPLES = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "my-job"},
    "metadata.name": "my-job",
    "spec": {"model": {"path": "/models/tiny"}, "data": {"train": {"path": "train.jsonl"}}, "reward": {"type": "math"}},
    "spec.model": {"path": "/models/Qwen2.5-1.5B-Instruct"},
    "spec.model.path": "/models/Qwen2.5-1.5B-Instruct",
    "spec.data": {"train": {"path": "/data/train.parquet"}},
    "spec.data.train": {"path": "/data/train.parquet"},
    "spec.reward": {"type": "math"},
    "spec.reward.type": "math",
    "spec.reward.function": "my_rewards:score",
    "spec.steps": 500,
    "spec.epochs": 1,
}
"""Values that are right at their places; all required fields are among them."""

_TYPES = {
    "int_type": ("a whole number", 8),
    "int_from_float": ("a whole number", 8),
    "float_type": ("a number", 0.5),
    "bool_type": ("true or false", True),
    "string_type": ("a text", "text"),
    "list_type": ("a list", []),
    "dict_type": ("a mapping", {}),
    "model_type": ("a mapping", {}),
}

_SHAPES = {
    LABEL_PATTERN: "is not a name: write at most 63 lower case letters, digits and hyphens, such as shared-models",
    IMAGE_PATTERN: "is not an image: write registry/name:tag or registry/name@sha256:digest",
    MOUNT_PATH_PATTERN: "is not a path: write an absolute one without dots as parts, such as /models",
    SUB_PATH_PATTERN: "is not a path: write a relative one without dots as parts, such as models/tiny",
    LABEL_KEY_PATTERN: "is not a label: write name or prefix/name",
    LABEL_VALUE_PATTERN: "is not a label's value: write at most 63 letters, digits, hyphens, underscores and dots",
}
"""What is wrong with a text that does not match a pattern."""

_PATTERNS = {
    "reward.function": "write module:name, such as my_rewards:score",
    "name": "write letters, digits and underscores, not beginning with a digit",
    "quantity": "write a number with an optional unit, such as 8Gi or 500m",
}

Explained = tuple[Location, str, str | None]
"""Where it is, the sentence, and the shown value."""


def explain(error: ErrorDetails) -> Explained:
    """The sentence of one error."""
    location = tuple(error["loc"])
    kind = error["type"]
    if kind == "extra_forbidden":
        place = _template(location[:-1])
        return location, f"there is no such field: {advise(place, str(location[-1]))}", None
    if kind == "missing":
        return location, f"missing: write {_snippet(location)}", None
    return location, _sentence(location, error, kind), shown(dotted(location), error["input"])


def explain_broken(broken: Broken, data: Any) -> Explained:
    """The sentence of a broken rule; `data` is the job as it was written."""
    location = broken.parts(broken.rule.field)
    for part in location:
        present = isinstance(data, list) or (isinstance(data, dict) and part in data)
        data = data[part] if present else None
    return location, broken.message, shown(dotted(location), data)


def _sentence(location: Location, error: ErrorDetails, kind: str) -> str:
    context, given = error.get("ctx", {}), error["input"]
    if kind in _TYPES:
        return _wrong_type(location, kind, given)
    if kind == "literal_error":
        return f"write {str(context['expected']).replace(chr(39), '')}"
    if kind == "string_pattern_mismatch":
        return _SHAPES.get(context["pattern"]) or _wrong_pattern(location, given)
    if kind == "finite_number":
        return "write a finite number"
    bounds = {
        "greater_than_equal": ("ge", "too small: write {} or more"),
        "greater_than": ("gt", "too small: write more than {}"),
        "less_than_equal": ("le", "too large: write {} or less"),
        "less_than": ("lt", "too large: write less than {}"),
        "string_too_short": ("min_length", "too short: write at least {} character"),
        "string_too_long": ("max_length", "too long: write at most {} characters"),
        "too_long": ("max_length", "too many: write at most {}"),
    }
    if kind in bounds:
        key, text = bounds[kind]
        return text.format(_plain_number(context[key]))
    return str(error["msg"]).removeprefix("Value error, ")


def _wrong_type(location: Location, kind: str, given: Any) -> str:
    expected, example = _TYPES[kind]
    node = _node(location)
    name = str(location[-1])
    if kind == "list_type" and name == "env" and isinstance(given, dict):
        return "expects a list: write env: [{name: NAME, value: text}]"
    if kind in ("model_type", "dict_type") and not isinstance(given, dict | list) and name in _MAIN_FIELD:
        value = "…" if shown(dotted(location), given) is None else _flow(given)
        return f"expects a mapping: write {name}: {{{_MAIN_FIELD[name]}: {value}}}"
    if isinstance(given, float) and not math.isfinite(given):
        return "write a finite number"
    if kind == "string_type" and isinstance(given, int | float):
        return "expects a text: put it in quotes"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(given, str) and _reads_as(kind, given):
        return f"expects {expected}: write it without quotes, {given}"
    if node is not None and node.model is None and node.has_default and kind != "dict_type":
        example = node.default
    return f"expects {expected}, such as {_flow(EXAMPLES.get(dotted(location), example))}"


def _reads_as(kind: str, text: str) -> bool:
    patterns = {"int_type": r"[0-9]+", "float_type": r"[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", "bool_type": "true|false"}
    return re.fullmatch(patterns[kind], text) is not None


def _wrong_pattern(location: Location, given: Any) -> str:
    path = _template(location)
    if path == "spec.reward.function":
        return f"names no function: {_PATTERNS['reward.function']}"
    if path.endswith(".name"):
        return f"is not a name: {_PATTERNS['name']}"
    advice = _PATTERNS["quantity"]
    if isinstance(given, str) and (match := re.fullmatch(r"\s*([0-9.]+)\s*([kKmMgGtTpP])[iI]?[bB]?\s*", given)):
        advice = f"write {match[1]}{match[2].upper()}i"
    return f"is not a quantity: {advice}"


def _snippet(location: Location) -> str:
    name, path = str(location[-1]), dotted(location)
    return f"{name}: {_flow(EXAMPLES[path])}" if path in EXAMPLES else f"{name}: …"


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z/._][A-Za-z0-9/._:-]*", value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _template(location: Location) -> str:
    return re.sub(r"\[\d+\]", "[]", dotted(location))


def _node(location: Location) -> Node | None:
    return spec_nodes().get(_template(location))


def _plain_number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
