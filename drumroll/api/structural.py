"""JSON schemas of pydantic models, turned into the structural schemas that Kubernetes takes.

No references, no `anyOf` but the one of quantities, no null: an optional field is one that may be left out. The
default of an object is written out in full: a server checks rules on it before it fills in the defaults of fields.
Rules become `x-kubernetes-validations`.
"""

from typing import Any

from drumroll.api.base import ApiModel
from drumroll.api.lifetime import STEPS_STAY, STEPS_STAY_CEL, frozen_at
from drumroll.api.rule import Rule
from drumroll.api.tree import Node, children

Schema = dict[str, Any]

_KEPT = (
    "type",
    "format",
    "pattern",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


def object_schema(model: type[ApiModel], path: str) -> Schema:
    """The structural schema of a model that lies at `path`."""
    raw = model.model_json_schema(mode="validation")
    properties, required = {}, []
    for node in children(model, path):
        properties[node.name] = _field_schema(node, raw["properties"][node.name])
        if node.info.is_required():
            required.append(node.name)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    validations = [validation(rule) for rule in model.rules if rule.cel is not None]
    if validations := [*validations, *_transitions(path)]:
        schema["x-kubernetes-validations"] = validations
    return schema


def validation(rule: Rule[Any]) -> Schema:
    """A rule as an API server reads it."""
    entry: Schema = {"rule": rule.cel, "message": rule.message}
    if rule.cel_message is not None:
        entry["messageExpression"] = rule.cel_message
    if rule.field and not rule.field.startswith("metadata"):
        entry["fieldPath"] = f".{rule.field}"
    return entry


def _transitions(path: str) -> list[Schema]:
    """What may not change, at the object that holds it."""
    rules = [
        {"rule": field.cel, "message": field.message, "fieldPath": f".{field.node.name}"} for field in frozen_at(path)
    ]
    if path == "spec":
        rules.append({"rule": STEPS_STAY_CEL, "message": STEPS_STAY})
    return rules


def _field_schema(node: Node, raw: Schema) -> Schema:
    schema: Schema = {"description": node.description}
    raw = _without_null(raw)
    if node.model is not None:
        inner = object_schema(node.model, f"{node.path}[]" if node.is_list else node.path)
        schema |= {**_kept(raw), "type": "array", "items": inner} if node.is_list else inner
    else:
        schema |= _plain(raw)
    if node.has_default:
        schema["default"] = node.default.to_wire() if isinstance(node.default, ApiModel) else node.default
    return schema


def _plain(raw: Schema) -> Schema:
    """A scalar, or a list or a map of scalars."""
    schema = _kept(raw)
    if "const" in raw:
        schema |= {"type": "string", "enum": [raw["const"]]}
    for bound in ("Minimum", "Maximum"):
        if (limit := raw.get(f"exclusive{bound}")) is not None:
            schema |= {bound.lower(): limit, f"exclusive{bound}": True}
    if raw.get("x-kubernetes-int-or-string"):
        schema["anyOf"] = raw["anyOf"]
    if "items" in raw:
        schema["items"] = _plain(raw["items"])
    if isinstance(raw.get("additionalProperties"), dict):
        schema["additionalProperties"] = _plain(raw["additionalProperties"])
    return schema


def _kept(raw: Schema) -> Schema:
    return {key: raw[key] for key in _KEPT if key in raw}


def _without_null(raw: Schema) -> Schema:
    choices = [choice for choice in raw.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return {**{key: value for key, value in raw.items() if key != "anyOf"}, **choices[0]}
    return raw
