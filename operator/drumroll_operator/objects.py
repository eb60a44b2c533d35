"""What a job needs beside its pods: ConfigMap, Secrets, Services, PodDisruptionBudgets, NetworkPolicies.

Pure and deterministic. `children` lists them in the order in which they are best applied. What guards one pod alone has
no budget: it would either do nothing or keep a node from being drained.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from drumroll.errors import UserError
from drumroll.job import ResolvedJob
from drumroll_operator.labels import metadata, secret_name, selector
from drumroll_operator.manifests import TRAINER_PORT, Manifest
from drumroll_operator.networks import network_policies
from drumroll_operator.resolve import SCHEDULER_PORT, STORE_PORT, STORE_ROLES, TOKEN_ROLES
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import Role
from drumroll_operator.tokens import derive

ROLLOUTS_AWAY = "25%"
"""Share of the replicas that drains and upgrades of nodes may take away at a time."""


def config_name(job: ResolvedJob) -> str:
    """Name of the ConfigMap with this revision of job.json."""
    return f"{job.name}-config-{job.digest()[:8]}"


def children(
    job: ResolvedJob, settings: OperatorSettings, key: bytes, *, created: float | None = None
) -> list[Manifest]:
    """All of them. `key`: the operator's, from which tokens, passwords and certificates are derived. `created`: Unix
    seconds when the job was made, for certificates.

    Raises:
        UserError: the key is too short, or certificates are wanted and `created` is not given.
    """
    policies = network_policies(job, settings) if settings.network_policies else []
    made = certificates(settings, key, uid=job.uid, name=job.name, namespace=job.namespace, created=created)
    return [_config_map(job), *_secrets(job, key, made), *_services(job), *_budgets(job), *policies]


def manifest_digest(manifest: Manifest) -> str:
    """SHA-256 of the canonical JSON, hexadecimal: the same digest needs no second write."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _config_map(job: ResolvedJob) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_name(job), "config"),
        "immutable": True,
        "data": {"job.json": job.to_json() + "\n"},
    }


def certificates(
    settings: OperatorSettings, key: bytes, *, uid: str, name: str, namespace: str, created: float | None
) -> dict[str, str]:
    """Certificates of a job's own servers: ca.crt, tls.crt and tls.key, PEM; empty where nothing is encrypted.

    Raises:
        UserError: the key is too short, or `created` is not given.
    """
    if not settings.tls:
        return {}
    # Not everybody encrypts, and the library is a large one.
    from drumroll_operator.certificates import server_certificates, service_names

    if created is None:
        raise UserError("certificates need the time of the job's creation")
    made = server_certificates(
        derive(key, uid, "tls", "authority").encode(),
        subject=f"{namespace}/{name}",
        names=service_names(name, namespace, ("scheduler", "store"), settings.cluster_domain),
        created=datetime.fromtimestamp(created, UTC),
    )
    return {"ca.crt": made.authority, "tls.crt": made.certificate, "tls.key": made.key}


def _secrets(job: ResolvedJob, key: bytes, served: Mapping[str, str]) -> list[Manifest]:
    """One for each role, with what its processes read and no more. The scheduler knows all tokens, to check them; the
    store knows all passwords of its users. Servers have the private key, the others what they trust."""
    trusted = {name: text for name, text in served.items() if name == "ca.crt"}
    external = bool(job.spec.stream.url)
    contents = {
        "scheduler": _tokens(job, key, *TOKEN_ROLES) | _passwords(job, key, "scheduler") | {**served},
        "rollout": _tokens(job, key, "rollout") | _passwords(job, key, "rollout") | trusted,
        "trainer": _tokens(job, key, "trainer") | _passwords(job, key, "trainer") | trusted,
    }
    if not external:
        contents["store"] = _passwords(job, key, *STORE_ROLES) | {**served}
    return [_secret(job, role, values) for role, values in sorted(contents.items())]


def _tokens(job: ResolvedJob, key: bytes, *roles: str) -> dict[str, str]:
    return {f"{role}.token": derive(key, job.uid, "token", role) for role in roles}


def _passwords(job: ResolvedJob, key: bytes, *roles: str) -> dict[str, str]:
    if job.spec.stream.url and job.spec.stream.secret_ref:
        return {}
    return {f"store-{role}.password": derive(key, job.uid, "store", role) for role in roles}


def _secret(job: ResolvedJob, role: str, values: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, secret_name(job, role), role),
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in sorted(values.items())},
    }


def _services(job: ResolvedJob) -> list[Manifest]:
    services = [_service(job, "scheduler", "grpc", SCHEDULER_PORT)]
    if not job.spec.stream.url:
        services.append(_service(job, "store", "store", STORE_PORT))
    if job.spec.trainer.replicas > 1:
        # Ranks look for each other before any of them is ready.
        headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
        services.append(_service(job, "trainer", "rendezvous", TRAINER_PORT, **headless))
    return services


def _service(job: ResolvedJob, role: Role, port_name: str, port: int, **extra: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, f"{job.name}-{role}", role),
        "spec": {
            "selector": selector(job, role)["matchLabels"],
            "ports": [{"name": port_name, "port": port, "targetPort": port, "protocol": "TCP"}],
            **extra,
        },
    }


def _budgets(job: ResolvedJob) -> list[Manifest]:
    """Replicas leave in part, trainer pods of a set one at a time.

    A share works only for the rollouts: the API server counts it against the job's scale, which is theirs.
    """
    budgets = [_budget(job, "rollout", {"maxUnavailable": ROLLOUTS_AWAY})]
    if job.spec.trainer.replicas > 1:
        budgets.append(_budget(job, "trainer", {"minAvailable": job.spec.trainer.replicas - 1}))
    return budgets


def _budget(job: ResolvedJob, role: Role, limit: Mapping[str, Any]) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, f"{job.name}-{role}", role),
        "spec": {"selector": selector(job, role), "unhealthyPodEvictionPolicy": "AlwaysAllow", **limit},
    }
