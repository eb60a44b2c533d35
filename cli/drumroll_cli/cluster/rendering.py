"""The pods that a job would get, made by the operator's own code. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import Role
from pydantic import ValidationError

from drumroll.api.quantity import parse_quantity
from drumroll.api.spec import RLJob
from drumroll_cli.cluster.findings import Survey, Unseen

GPU = "nvidia.com/gpu"
_UNKNOWN = {role: {"reference": "unknown"} for role in ("scheduler", "rollout", "trainer")}


@dataclass(frozen=True, slots=True)
class RolePods:
    """The pods of a role: how many, and one of them as it would be created."""

    count: int
    manifest: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        return int(parse_quantity(self.amounts("limits").get(GPU, "0")))

    def amounts(self, kind: str) -> Mapping[str, str]:
        """Requests or limits of its main container; requests default to limits, as the API server has it."""
        resources = self.manifest["spec"]["containers"][0].get("resources") or {}
        limits = resources.get("limits") or {}
        return limits if kind == "limits" else {**limits, **(resources.get("requests") or {})}

    def tolerates(self, taints: Iterable[tuple[str, str]]) -> bool:
        """Whether the pod tolerates all these taints (key and effect); values are not looked at."""
        tolerations = self.manifest["spec"].get("tolerations") or []
        return all(any(_covers(item, key, effect) for item in tolerations) for key, effect in taints)


def _covers(toleration: Mapping[str, Any], key: str, effect: str) -> bool:
    return toleration.get("key") in (None, key) and toleration.get("effect") in (None, effect)


def pods_of(job: RLJob, seen: Survey) -> dict[str, RolePods]:
    """The pods of all roles, with the operator's settings where they can be read."""
    settings = settings_of(seen)
    if settings.default_claim is None:
        settings = settings.model_copy(update={"default_claim": "unknown"})
    identity = {"uid": "unknown", "namespace": seen.namespace}
    resolved = resolve(job.model_copy(update={"metadata": job.metadata.model_copy(update=identity)}), settings)
    counts: dict[Role, int] = {} if job.spec.stream.url else {"store": 1}
    counts |= {"scheduler": 1, "trainer": job.spec.trainer.replicas, "rollout": job.spec.rollout.replicas}
    return {role: RolePods(count, pod(resolved, settings, role)) for role, count in counts.items()}


def settings_of(seen: Survey) -> OperatorSettings:
    """The operator's settings; without them, or with ones of another version, the defaults."""
    found = [] if isinstance(seen.operators, Unseen) else [o.settings for o in seen.operators if o.settings]
    for settings in found:
        try:
            return OperatorSettings.model_validate(settings)
        except ValidationError:
            continue
    return OperatorSettings.model_validate({"images": _UNKNOWN})
