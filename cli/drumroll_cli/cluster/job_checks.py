"""Whether a namespace has what one job asks for: GPUs, volumes, paths, quota, Secrets. Pure."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from drumroll_operator.resolve import VOLUME

from drumroll.api.spec import RLJob
from drumroll_cli.cluster.checks import claim_line, free_gpus
from drumroll_cli.cluster.findings import Line, NodeSeen, Survey, Unseen, fail, ok, warn
from drumroll_cli.cluster.rendering import RolePods, pods_of
from drumroll_cli.cluster.room import quota_lines

IMAGE_VOLUMES = (1, 35)
"""Kubernetes that mounts images by default."""


def job_lines(job: RLJob, seen: Survey) -> Iterator[Line]:
    """All checks of one job."""
    name = job.metadata.name
    refusal = seen.refusals.get(name)
    if refusal:
        yield fail(name, f"the API server refuses the job: {refusal}", "correct the file, or do as it says")
    elif refusal is not None:
        yield ok(name, "the API server takes the job")
    pods = pods_of(job, seen)
    yield from _gpus(name, pods, seen)
    yield from _volume(job, seen)
    yield from _paths(job)
    yield from quota_lines(name, pods, seen)
    yield from _secrets(job, seen)
    yield from _user(job, seen)


def _gpus(name: str, pods: Mapping[str, RolePods], seen: Survey) -> Iterator[Line]:
    wants = {role: (part.count, part.gpus) for role, part in pods.items() if part.gpus}
    subject = f"{name}: GPUs"
    total = sum(count * each for count, each in wants.values())
    if not total:
        yield ok(subject, "none wanted")
        return
    text = f"{total} wanted ({', '.join(f'{role} {count} x {each}' for role, (count, each) in wants.items())})"
    if isinstance(seen.nodes, Unseen):
        yield warn(subject, f"{text}; nodes: {seen.nodes.why}", "ask how many GPUs the cluster has")
        return
    usable = [node for node in seen.nodes if node.usable]
    there, largest = sum(node.gpus for node in usable), max((node.gpus for node in usable), default=0)
    advice = "ask for fewer, or add nodes; where a node autoscaler adds them, this check cannot know"
    if largest < max(each for _, each in wants.values()):
        yield fail(subject, f"{text}, but no node has more than {largest}", advice)
    elif there < total:
        yield fail(subject, f"{text}, {there} there", advice)
    elif not isinstance(seen.gpus_taken, Unseen) and (free := free_gpus(usable, seen.gpus_taken)) < total:
        yield warn(subject, f"{text}, {free} of {there} free", "the job waits until others give some back")
    else:
        yield ok(subject, f"{text}, {there} there")
    yield from _taints(subject, pods, usable)


def _taints(subject: str, pods: Mapping[str, RolePods], usable: list[NodeSeen]) -> Iterator[Line]:
    """GPU nodes that no pod of a role tolerates."""
    with_gpus = [node for node in usable if node.gpus]
    for role, part in pods.items():
        if not part.gpus or not with_gpus or any(part.tolerates(node.taints) for node in with_gpus):
            continue
        keys = sorted({key for node in with_gpus for key, _ in node.taints if not part.tolerates([(key, _)])})
        yield warn(
            subject,
            f"all GPU nodes are tainted with {', '.join(keys)}, and the {role} does not tolerate it",
            f"write {role}.podTemplatePatch.spec.tolerations, unless your cluster adds them to GPU pods",
        )


def _volume(job: RLJob, seen: Survey) -> Iterator[Line]:
    name, num_nodes = job.metadata.name, 0 if isinstance(seen.nodes, Unseen) else len(seen.nodes)
    claim = job.spec.weights.volume.persistent_volume_claim
    wanted = claim.claim_name if claim is not None else seen.setting("defaultClaim")
    if wanted:
        yield claim_line(f"{name}: volume", wanted, seen.claims, num_nodes=num_nodes, writes=True)
    elif isinstance(seen.operators, Unseen) or not any(operator.settings for operator in seen.operators):
        advice = "write weights.volume.persistentVolumeClaim.claimName, unless the operator has a default claim"
        yield warn(f"{name}: volume", "the job names no claim, and the operator's default is not yours to see", advice)
    else:
        yield fail(
            f"{name}: volume",
            "the job names no claim, and the operator has no default one",
            "write weights.volume.persistentVolumeClaim.claimName: docs/model-and-data.md",
        )
    for volume in job.spec.volumes:
        subject = f"{name}: volume {volume.name}"
        if volume.persistent_volume_claim is not None:
            other = volume.persistent_volume_claim.claim_name
            yield claim_line(subject, other, seen.claims, num_nodes=num_nodes, writes=not volume.read_only)
        elif volume.config_map is not None:
            yield _exists(subject, "ConfigMap", volume.config_map.name, seen.config_maps.get(volume.config_map.name))
        elif volume.image is not None:
            yield _image_volume(subject, volume.image.reference, seen)


def _image_volume(subject: str, reference: str, seen: Survey) -> Line:
    if seen.numbers < IMAGE_VOLUMES:
        text = f"Kubernetes {seen.version} mounts no images unless its feature gate ImageVolume is on"
        return warn(subject, text, "use a claim, or a newer cluster: docs/model-and-data.md")
    return ok(subject, f"image {reference}; needs a container runtime that mounts images")


def _exists(subject: str, kind: str, name: str, there: bool | Unseen | None) -> Line:
    if there is True:
        return ok(subject, f"{kind} {name} is there")
    if there is False:
        return fail(subject, f"there is no {kind} {name}", "create it in the job's namespace, or correct the name")
    why = there.why if isinstance(there, Unseen) else "it was not looked at"
    return warn(subject, f"{kind} {name} cannot be seen: {why}", "make sure that it is in the job's namespace")


def _paths(job: RLJob) -> Iterator[Line]:
    """Where a pod will look for the model and the data."""
    spec = job.spec
    paths = {"model.path": spec.model.path, "data.train.path": spec.data.train.path}
    paths["data.eval.path"] = spec.data.eval.path if spec.data.eval is not None else None
    mounts = {volume.mount_path: volume.name for volume in spec.volumes}
    for field, path in paths.items():
        if path is None:
            continue
        inside = posixpath.normpath(posixpath.join(VOLUME, path))
        mount = max((m for m in mounts if inside == m or inside.startswith(f"{m}/")), key=len, default=None)
        subject = f"{job.metadata.name}: {field}"
        if mount is not None:
            yield ok(subject, f"{inside}, on volume {mounts[mount]} (not looked into from here)")
        elif inside.startswith(f"{VOLUME}/"):
            yield ok(subject, f"{inside[len(VOLUME) + 1 :]} on the job's claim (not looked into from here)")
        else:
            yield fail(
                subject,
                f"{inside} is on no volume of the job: pods will not find it",
                f"add a volume with its mountPath to spec.volumes, or write a path relative to the claim ({VOLUME})",
            )


def _secrets(job: RLJob, seen: Survey) -> Iterator[Line]:
    for name in secrets_of(job, seen.setting("imagePullSecrets") or []):
        yield _exists(f"{job.metadata.name}: Secret", "Secret", name, seen.secrets.get(name))


def secrets_of(job: RLJob, of_operator: list[Mapping[str, Any]]) -> list[str]:
    """Names of the Secrets that a job's pods need, beside its own."""
    spec = job.spec
    names = [secret.name for secret in spec.image_pull_secrets] + [item["name"] for item in of_operator]
    names += [name for name in (spec.stream.secret_ref, spec.stream.ca_secret_ref) if name]
    for env in (spec.env, spec.rollout.env, spec.trainer.env, spec.scheduler.env):
        names += [variable.value_from.secret_key_ref.name for variable in env if variable.value_from is not None]
    return sorted(dict.fromkeys(names))


def config_maps_of(job: RLJob) -> list[str]:
    """Names of the ConfigMaps that a job mounts."""
    return sorted({volume.config_map.name for volume in job.spec.volumes if volume.config_map is not None})


def _user(job: RLJob, seen: Survey) -> Iterator[Line]:
    """The user of the pods must be able to write to the claim; that cannot be seen, so it is said."""
    security = job.spec.security_context
    default = seen.setting("podSecurity") or {}
    user = (
        security.run_as_user if security is not None and security.run_as_user is not None else default.get("runAsUser")
    )
    group = security.fs_group if security is not None and security.fs_group is not None else default.get("fsGroup")
    if user is not None:
        text = f"pods run as user {user}, group of volumes {group if group is not None else 'unset'}"
        yield ok(f"{job.metadata.name}: user", f"{text}: it must be able to write to the claim")
