"""`podTemplatePatch`: what a job adds to the pods of a role.

The schema is the allow-list: nothing else can be written. Additions never take away what Drumroll sets: its labels,
volumes, mounts and tolerations stay, and init containers run as the same user under the same restrictions.
"""

import copy
from typing import Any

from drumroll.api.patches import InitContainer, PodTemplatePatch
from drumroll.api.spec import RLJobSpec
from drumroll_operator.labels import OWN_PREFIXES
from drumroll_operator.manifests import Manifest
from drumroll_operator.quantities import canonical_resources
from drumroll_operator.security import container_security
from drumroll_operator.substrate import Role

_TAKEN_OVER = ("nodeSelector", "affinity", "topologySpreadConstraints")
_NAMES = ("priorityClassName", "runtimeClassName", "schedulerName")


def patch_of(spec: RLJobSpec, role: Role) -> PodTemplatePatch | None:
    """A role's patch."""
    return {
        "store": spec.stream.embedded.pod_template_patch,
        "scheduler": spec.scheduler.pod_template_patch,
        "rollout": spec.rollout.pod_template_patch,
        "trainer": spec.trainer.pod_template_patch,
    }[role]


def patched(pod: Manifest, patch: PodTemplatePatch | None) -> Manifest:
    """The pod with the patch's additions; the pod given stays as it is."""
    if patch is None:
        return pod
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    labels = {key: value for key, value in patch.metadata.labels.items() if not key.startswith(OWN_PREFIXES)}
    metadata["labels"] = labels | metadata["labels"]
    if patch.metadata.annotations:
        metadata["annotations"] = dict(patch.metadata.annotations) | metadata.get("annotations", {})
    wire = _without_empty(patch.spec.to_wire())
    spec |= {key: wire[key] for key in (*_TAKEN_OVER, *_NAMES) if key in wire}
    spec["tolerations"] = spec.get("tolerations", []) + wire.get("tolerations", [])
    own_volumes = {volume["name"] for volume in spec["volumes"]}
    # An empty directory has no fields, and is one for that.
    volumes = [volume.to_wire() for volume in patch.spec.volumes]
    spec["volumes"] += [volume for volume in volumes if volume["name"] not in own_volumes]
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        # What prepares the data sees what the scheduler sees.
        container["volumeMounts"] += [_without_empty(mount.to_wire()) for mount in patch.spec.volume_mounts]
    inits = [_init_container(container) for container in patch.spec.init_containers]
    if inits:
        # Theirs first: they bring what ours reads.
        spec["initContainers"] = inits + spec.get("initContainers", [])
    return pod


def _init_container(container: InitContainer) -> dict[str, Any]:
    wire: dict[str, Any] = _without_empty(container.to_wire())
    wire["securityContext"] = container_security()
    wire.pop("resources", None)
    if resources := canonical_resources(container.resources):
        wire["resources"] = resources
    mounts = wire.setdefault("volumeMounts", [])
    if all(mount["mountPath"] != "/tmp" for mount in mounts):
        mounts.append({"name": "drumroll-tmp", "mountPath": "/tmp"})
    names = {variable["name"] for variable in wire.get("env", [])}
    if "HOME" not in names:
        wire["env"] = [{"name": "HOME", "value": "/tmp"}, *wire.get("env", [])]
    wire["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return wire


def _without_empty(value: Any) -> Any:
    """Without empty lists, mappings, texts and what is false, which say nothing in these places."""
    if isinstance(value, dict):
        cleaned = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in ({}, [], "", None) and item is not False}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
