"""What is sent to create jobs, and how a job that is there already differs from the one that is wanted. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from drumroll.api.lifetime import is_live
from drumroll.api.spec import RLJob, RLJobSpec
from drumroll.errors import UserError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is not as the file has it."""

    path: str
    here: Any
    """As the cluster has it; None: unset."""
    wanted: Any
    fixed: bool
    """It cannot change while the job lives."""

    def __str__(self) -> str:
        return f"{self.path} is {_shown(self.here)} there and {_shown(self.wanted)} in the file"


def body_of(job: RLJob, namespace: str) -> Json:
    """The object to create: what the user wrote, without defaults, in its namespace.

    Raises:
        UserError: the file names another namespace than the one that was chosen.
    """
    body = job.model_dump(by_alias=True, exclude_unset=True, exclude_none=True, mode="json")
    written = body["metadata"].get("namespace")
    if written is not None and written != namespace:
        raise UserError(
            f"{job.metadata.name}: the file says metadata.namespace: {written}, and {namespace} is chosen: "
            f"write -n {written}, or take metadata.namespace out of the file"
        )
    body["metadata"] = {key: value for key, value in body["metadata"].items() if key != "uid"} | {
        "namespace": namespace
    }
    return body


def namespace_of(job: RLJob, chosen: str | None, default: str) -> str:
    """Where a job goes: the chosen namespace, else its file's, else the context's."""
    if chosen is not None:
        return chosen
    return job.metadata.namespace if "namespace" in job.metadata.model_fields_set else default


def differences(there: Mapping[str, Any], wanted: RLJob) -> list[Difference] | None:
    """Fields of the spec that differ, defaults filled in on both sides; None where the cluster's cannot be read."""
    try:
        spec = RLJobSpec.model_validate(there.get("spec") or {})
    except ValidationError:
        return None
    old, new = _leaves(spec.to_wire(), "spec"), _leaves(wanted.spec.to_wire(), "spec")
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return [Difference(path, old.get(path), new.get(path), not is_live(path)) for path in paths]


def exists_already(name: str, phase: str, found: list[Difference] | None, file: str) -> str:
    """What to do about a job of this name that is there and differs; `found` is not empty."""
    lines = [f"RLJob {name} is there already ({phase})"]
    lines += [f"  {difference}" for difference in (found or [])[:10]]
    if phase in ("Complete", "Failed"):
        lines.append(
            f"it has ended: drumroll cancel {name} removes it (its files stay), or give the new job another name"
        )
    elif found is None or any(difference.fixed for difference in found):
        lines.append(
            f"it cannot change so while it lives: give the new job another name, or drumroll cancel {name} first (its "
            "files stay)"
        )
    else:
        lines.append(f"these may change while it runs: kubectl apply -f {file}, or drumroll scale, suspend, resume")
    return "\n".join(lines)


def _leaves(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {inner: leaf for key, item in value.items() for inner, leaf in _leaves(item, f"{path}.{key}").items()}
    return {} if value in ({}, []) else {path: value}


def _shown(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
