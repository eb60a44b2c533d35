"""Contradictions in what only a cluster acts on: volumes and pod patches. `rules` says how a rule works."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from drumroll.api.rule import Rule

if TYPE_CHECKING:
    from drumroll.api.affinity import LabelSelector
    from drumroll.api.patches import (
        InitContainer,
        PatchMetadata,
        PatchSpec,
        PatchVolume,
        PodTemplatePatch,
        Toleration,
    )
    from drumroll.api.running import JobVolume
    from drumroll.api.spec import RLJobSpec

JOB_VOLUME = "drumroll-volume"
"""Name, in every pod of a job, of the volume with weights and checkpoints."""
OWN_PREFIX = "drumroll"
"""Volumes and containers whose names begin so are Drumroll's own."""
OWN_LABELS = r"^(drumroll\.dev|app\.kubernetes\.io)/"
SECURITY_ANNOTATIONS = r"^[^/]*security[^/]*\.kubernetes\.io/"
NEEDED_PATHS = r"^/(var|var/lib|var/lib/drumroll|tmp|etc|opt|home|root)$"
SYSTEM_PATHS = r"^/(dev|proc|sys|etc/drumroll|run|var/run|usr|bin|sbin|lib|lib64|opt/drumroll)(/|$)"
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"


def repeated(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, sorted."""
    counted = list(names)
    return sorted({name for name in counted if counted.count(name) > 1})


def _own_name(kind: str) -> Rule[Any]:
    return Rule(
        id=f"{kind}-name",
        field="name",
        message="names that begin with drumroll are Drumroll's own: write another name",
        holds=lambda owner: not owner.name.startswith(OWN_PREFIX),
        cel=f"!self.name.startsWith('{OWN_PREFIX}')",
    )


def _free_path(kind: str) -> Rule[Any]:
    return Rule(
        id=f"{kind}-path",
        field="mountPath",
        message="a mount there would hide files that the pod needs: write a path of its own, such as /models",
        holds=lambda mount: (
            not re.search(NEEDED_PATHS, mount.mount_path) and not re.search(SYSTEM_PATHS, mount.mount_path)
        ),
        cel=f"!self.mountPath.matches(r'{NEEDED_PATHS}') && !self.mountPath.matches(r'{SYSTEM_PATHS}')",
    )


def _one_source(kind: str, sources: Mapping[str, str]) -> Rule[Any]:
    """`sources`: the fields of which one is set, as attributes and as in files."""
    names = list(sources.values())
    return Rule(
        id=f"{kind}-source",
        field="",
        message=f"a volume has one source: write exactly one of {', '.join(names[:-1])} and {names[-1]}",
        holds=lambda volume: sum(getattr(volume, attribute) is not None for attribute in sources) == 1,
        cel=f"[{', '.join(f'has(self.{name})' for name in names)}].filter(set, set).size() == 1",
    )


def _once(attribute: str, field: str) -> Rule[Any]:
    """A list whose schema is a map by name: a server refuses repeated names by itself."""

    def names(owner: Any) -> list[str]:
        return repeated(item.name for item in getattr(owner, attribute))

    return Rule(
        id=f"{field}-once",
        field=field,
        message="a name is there more than once: write each name once",
        holds=lambda owner: not names(owner),
        cel=None,
        explain=lambda owner: f"{', '.join(names(owner))} is there more than once: write each name once",
    )


def _label_keys(attribute: str, field: str) -> Rule[Any]:
    return Rule(
        id=f"{field}-keys",
        field=field,
        message="a key is no label: write name or prefix/name, in letters, digits, hyphens, underscores and dots",
        holds=lambda owner: all(re.fullmatch(LABEL_KEY_PATTERN, key) for key in getattr(owner, attribute)),
        cel=f"self.{field}.all(k, k.matches(r'{LABEL_KEY_PATTERN}'))",
    )


def _paths_differ(attribute: str, field: str) -> Rule[Any]:
    return Rule(
        id=f"{field}-paths",
        field=field,
        message="two mounts have the same mountPath: write each path once",
        holds=lambda owner: not repeated(mount.mount_path for mount in getattr(owner, attribute)),
        cel=f"self.{field}.all(m, self.{field}.exists_one(n, n.mountPath == m.mountPath))",
    )


JOB_VOLUME_RULES: tuple[Rule["JobVolume"], ...] = (
    _one_source(
        "volume", {"persistent_volume_claim": "persistentVolumeClaim", "image": "image", "config_map": "configMap"}
    ),
    _own_name("volume"),
    _free_path("volume"),
)

PATCH_VOLUME_RULES: tuple[Rule["PatchVolume"], ...] = (
    _one_source(
        "patch-volume",
        {
            "empty_dir": "emptyDir",
            "persistent_volume_claim": "persistentVolumeClaim",
            "config_map": "configMap",
            "secret": "secret",
            "image": "image",
        },
    ),
    _own_name("patch-volume"),
)

INIT_CONTAINER_RULES: tuple[Rule["InitContainer"], ...] = (
    _own_name("init-container"),
    _paths_differ("volume_mounts", "volumeMounts"),
)

SELECTOR_RULES: tuple[Rule["LabelSelector"], ...] = (_label_keys("match_labels", "matchLabels"),)

PATCH_METADATA_RULES: tuple[Rule["PatchMetadata"], ...] = (
    _label_keys("labels", "labels"),
    _label_keys("annotations", "annotations"),
    Rule(
        id="own-labels",
        field="labels",
        message="labels of drumroll.dev and app.kubernetes.io are Drumroll's own: write labels with another prefix",
        holds=lambda metadata: not any(re.search(OWN_LABELS, key) for key in metadata.labels),
        cel=f"self.labels.all(k, !k.matches(r'{OWN_LABELS}'))",
    ),
    Rule(
        id="security-annotations",
        field="annotations",
        message="the security of pods is Drumroll's own: leave annotations of security profiles out",
        holds=lambda metadata: not any(re.search(SECURITY_ANNOTATIONS, key) for key in metadata.annotations),
        cel=f"self.annotations.all(k, !k.matches(r'{SECURITY_ANNOTATIONS}'))",
    ),
)

TOLERATION_RULES: tuple[Rule["Toleration"], ...] = (
    Rule(
        id="toleration-key",
        field="key",
        message="a toleration without a key is for all taints: write operator: Exists, or a key",
        holds=lambda toleration: toleration.key is not None or toleration.operator == "Exists",
        cel="has(self.key) || self.operator == 'Exists'",
    ),
    Rule(
        id="toleration-value",
        field="value",
        message="a value counts only with operator: Equal: leave it out, or write operator: Equal",
        holds=lambda toleration: toleration.value is None or toleration.operator == "Equal",
        cel="!has(self.value) || self.operator == 'Equal'",
    ),
    Rule(
        id="toleration-time",
        field="tolerationSeconds",
        message="only NoExecute taints are put up with for a time: leave it out, or write effect: NoExecute",
        holds=lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
        cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
    ),
)

PATCH_SPEC_RULES: tuple[Rule["PatchSpec"], ...] = (
    _label_keys("node_selector", "nodeSelector"),
    _once("init_containers", "initContainers"),
    _once("volumes", "volumes"),
    Rule(
        id="mount-path",
        field="volumeMounts",
        message="a mount would hide files that the pod needs: write paths of their own, such as /models",
        holds=lambda spec: (
            not any(
                re.search(NEEDED_PATHS, mount.mount_path) or re.search(SYSTEM_PATHS, mount.mount_path)
                for mount in spec.volume_mounts
            )
        ),
        cel=f"self.volumeMounts.all(m, !m.mountPath.matches(r'{NEEDED_PATHS}') && "
        f"!m.mountPath.matches(r'{SYSTEM_PATHS}'))",
    ),
    _paths_differ("volume_mounts", "volumeMounts"),
)


def _patched_rules(place: str, patch_of: "Callable[[RLJobSpec], PodTemplatePatch | None]") -> "list[Rule[RLJobSpec]]":
    """What must hold between the patch of a role, at `place`, and the volumes of the job."""
    shared = place != "stream.embedded"  # The store's pod has none of the job's volumes.

    def known(spec: "RLJobSpec") -> bool:
        patch = patch_of(spec)
        if patch is None:
            return True
        names = {JOB_VOLUME, *(volume.name for volume in patch.spec.volumes)}
        names |= {volume.name for volume in spec.volumes} if shared else set()
        inits = [mount for container in patch.spec.init_containers for mount in container.volume_mounts]
        return all(mount.name in names for mount in [*patch.spec.volume_mounts, *inits])

    def apart(spec: "RLJobSpec") -> bool:
        patch = patch_of(spec)
        if patch is None:
            return True
        names = {volume.name for volume in spec.volumes} & {volume.name for volume in patch.spec.volumes}
        paths = {volume.mount_path for volume in spec.volumes} & {m.mount_path for m in patch.spec.volume_mounts}
        return not names and not paths

    patch = f"self.{place}.podTemplatePatch"
    ours = "self.volumes.exists(v, v.name == m.name) || " if shared else ""
    cel_known = f"m.name == '{JOB_VOLUME}' || {ours}{patch}.spec.volumes.exists(v, v.name == m.name)"
    mounts = Rule(
        id="mount-of-volume",
        field=f"{place}.podTemplatePatch.spec.volumeMounts",
        message="a mount names no volume: write the name of one under podTemplatePatch.spec.volumes"
        + (" or spec.volumes" if shared else ""),
        holds=known,
        cel=f"!has({patch}) || ({patch}.spec.volumeMounts.all(m, {cel_known}) && "
        f"{patch}.spec.initContainers.all(c, c.volumeMounts.all(m, {cel_known})))",
    )
    if not shared:
        return [mounts]
    return [
        mounts,
        Rule(
            id="volumes-apart",
            field=f"{place}.podTemplatePatch.spec.volumes",
            message="spec.volumes has such a name or mountPath already: write another one",
            holds=apart,
            cel=f"!has({patch}) || ({patch}.spec.volumes.all(p, !self.volumes.exists(v, v.name == p.name)) && "
            f"{patch}.spec.volumeMounts.all(m, !self.volumes.exists(v, v.mountPath == m.mountPath)))",
        ),
    ]


CLUSTER_RULES: tuple[Rule["RLJobSpec"], ...] = (
    _once("volumes", "volumes"),
    _once("image_pull_secrets", "imagePullSecrets"),
    _paths_differ("volumes", "volumes"),
    *_patched_rules("rollout", lambda spec: spec.rollout.pod_template_patch),
    *_patched_rules("trainer", lambda spec: spec.trainer.pod_template_patch),
    *_patched_rules("scheduler", lambda spec: spec.scheduler.pod_template_patch),
    *_patched_rules("stream.embedded", lambda spec: spec.stream.embedded.pod_template_patch),
)
