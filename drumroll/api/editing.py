"""Changes to a job's plain data by dotted paths, as in `spec.rollout.replicas=4`."""

from collections.abc import Mapping
from typing import Any


def edited(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with these fields set, mappings on the way made where they are missing; None takes a field out.

    Raises:
        ValueError: a path goes through something that is not a mapping.
    """
    result = dict(data)
    for path, value in changes.items():
        result = _with(result, path.split("."), value, path)
    return result


def _with(data: Mapping[str, Any], parts: list[str], value: Any, path: str) -> dict[str, Any]:
    name, *rest = parts
    copy = dict(data)
    if rest:
        inner = copy.get(name, {})
        if not isinstance(inner, Mapping):
            raise ValueError(f"{path}: {name} is not a mapping")
        copy[name] = _with(inner, rest, value, path)
    elif value is None:
        copy.pop(name, None)
    else:
        copy[name] = value
    return copy
