"""A job's pods on a cluster: what `manifests` says of them, made fit for a namespace with the *restricted* profile.

Pure and deterministic: the same job and settings give the same pod, whoever renders it. A pod is made once and never
changed; it runs to its end, and the operator makes another.
"""

import json
from typing import Any, Final

from drumroll.api.pods import ResourceRequirements
from drumroll.api.quantity import quantity_bytes
from drumroll.endpoint import Endpoint
from drumroll.job import ResolvedJob
from drumroll_operator.cluster_substrate import HEALTH_PORT, kubernetes_substrate
from drumroll_operator.labels import INDEX, ROLE, SET, metadata, pod_name
from drumroll_operator.manifests import GPU, TRAINER_PORT, Manifest, render_pod
from drumroll_operator.objects import config_name
from drumroll_operator.patching import patch_of, patched
from drumroll_operator.probes import probes
from drumroll_operator.quantities import canonical, canonical_resources
from drumroll_operator.resolve import SCHEDULER_PORT
from drumroll_operator.security import container_security, pod_security
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import Role

END_S: Final = 15
"""What a process gets after its own time for leaving, to close engines and connections."""
NODE_S: Final = 60
"""A pod is given up when its node has been away for so long."""
STORE_NODE_S: Final = 300
"""The same for the store, which cannot run twice and comes back with its node."""
_MEBIBYTE = 1 << 20
_STORE_OVERHEAD_BYTES = 192 * _MEBIBYTE
"""The ledger's reserve, connections, and what copying the file on the side needs."""


def pod(job: ResolvedJob, settings: OperatorSettings, role: Role, index: int = 0, *, set_number: int = 0) -> Manifest:
    """One pod. `set_number`: value of the label drumroll.dev/set of trainer pods; 0: no label."""
    substrate = kubernetes_substrate(job, settings, config_map=config_name(job))
    # A copy, since its init container shares parts with its main one.
    rendered = json.loads(json.dumps(render_pod(job, substrate, role, index)))
    main, init = rendered["spec"]["containers"][0], rendered["spec"].get("initContainers", [])
    resources = _resources(job, role)
    for container in (*init, main):
        container.pop("resources", None)
        container |= _fixed(job, settings, role) | ({"resources": resources} if resources else {})
    main |= probes(job, role) | {"ports": _ports(job, role)}
    rendered["metadata"] = metadata(job, pod_name(job.name, role, index), role)
    rendered["metadata"]["labels"] |= {ROLE: role, INDEX: str(index), **({SET: str(set_number)} if set_number else {})}
    rendered["spec"] |= _pod_spec(job, settings, role, index, gpus=GPU in resources.get("limits", {}))
    if role != "store":
        rendered["spec"]["terminationGracePeriodSeconds"] += END_S
    return patched(rendered, patch_of(job.spec, role))


def _pod_spec(job: ResolvedJob, settings: OperatorSettings, role: Role, index: int, *, gpus: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "securityContext": pod_security(job.spec, settings),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": _tolerations(role, gpus=gpus),
    }
    names = [secret.name for secret in settings.image_pull_secrets]
    names += [secret.name for secret in job.spec.image_pull_secrets]
    if names:
        spec["imagePullSecrets"] = [{"name": name} for name in dict.fromkeys(names)]
    if role == "trainer":
        # With the headless Service these make the pod's name resolvable for the other ranks.
        spec |= {"hostname": pod_name(job.name, role, index), "subdomain": f"{job.name}-trainer"}
    return spec


def _fixed(job: ResolvedJob, settings: OperatorSettings, role: Role) -> dict[str, Any]:
    """What all of our containers have alike."""
    fixed: dict[str, Any] = {
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if not _own_image(job, role):
        images = settings.images
        fixed["imagePullPolicy"] = {"rollout": images.rollout, "trainer": images.trainer}.get(
            role, images.scheduler
        ).pull_policy
    return fixed


def _own_image(job: ResolvedJob, role: Role) -> bool:
    """Whether the job names the image itself: Kubernetes then knows best when to pull it."""
    spec = job.spec
    return bool(
        {
            "store": spec.stream.embedded.image or spec.scheduler.image,
            "scheduler": spec.scheduler.image,
            "rollout": spec.rollout.image,
            "trainer": spec.trainer.image,
        }[role]
    )


def _resources(job: ResolvedJob, role: Role) -> dict[str, Any]:
    """As asked for; scheduler and store, whose needs are known, have requests of their own where nothing is."""
    spec = job.spec
    asked: ResourceRequirements = {
        "store": spec.stream.embedded.resources,
        "scheduler": spec.scheduler.resources,
        "rollout": spec.rollout.resources,
        "trainer": spec.trainer.resources,
    }[role]
    resources = canonical_resources(asked)
    if resources or role in ("rollout", "trainer"):
        return resources
    if role == "scheduler":
        return {"requests": {"cpu": "100m", "memory": "384Mi"}}
    samples = quantity_bytes(spec.stream.embedded.max_bytes)
    mebibytes = -(-(samples + samples // 4 + _STORE_OVERHEAD_BYTES) // _MEBIBYTE)
    return {"requests": {"cpu": "50m", "memory": canonical("memory", f"{mebibytes}Mi")}}


def _ports(job: ResolvedJob, role: Role) -> list[dict[str, Any]]:
    named = {
        "store": {"store": Endpoint.parse(job.endpoints.store).port},
        "scheduler": {"grpc": SCHEDULER_PORT, "health": HEALTH_PORT},
        "rollout": {"health": HEALTH_PORT},
        "trainer": {"rendezvous": TRAINER_PORT, "health": HEALTH_PORT},
    }[role]
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named.items()]


def _tolerations(role: Role, *, gpus: bool) -> list[dict[str, Any]]:
    seconds = STORE_NODE_S if role == "store" else NODE_S
    lost = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("not-ready", "unreachable")
    ]
    # Nodes with GPUs are commonly kept for pods that ask for them.
    return [*lost, {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}] if gpus else lost
