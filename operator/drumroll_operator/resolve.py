"""An RLJob as the processes of a cluster read it: paths inside the pods, addresses of Services, files of Secrets.

All files of a job lie on one claim, mounted at /var/lib/drumroll in every pod. Relative paths of a job are relative to
that folder; absolute ones need a volume of the job that is mounted there.
"""

import posixpath
from typing import Final

from drumroll.api.spec import RLJob, RLJobSpec
from drumroll.errors import UserError
from drumroll.job import Endpoints, Layout, ResolvedJob, Secrets
from drumroll_operator import reasons
from drumroll_operator.quantities import canonical_spec
from drumroll_operator.settings import OperatorSettings

VOLUME: Final = "/var/lib/drumroll"
SECRETS: Final = "/var/run/secrets/drumroll"
STORE_SECRETS: Final = "/var/run/secrets/drumroll-store"
CA: Final = "/var/run/secrets/drumroll-store-ca"
SCHEDULER_PORT: Final = 50051
STORE_PORT: Final = 6379
TOKEN_ROLES: Final = ("scheduler", "rollout", "trainer", "viewer", "operator")
STORE_ROLES: Final = ("scheduler", "rollout", "trainer")


class JobRefused(UserError):
    """The job cannot be run by this operator."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """A constant of `reasons`."""


def resolve(job: RLJob, settings: OperatorSettings) -> ResolvedJob:
    """The job of a cluster.

    Raises:
        JobRefused: with the reason for its condition.
    """
    claim_name(job.spec, settings)
    _check_paths(job.spec)
    name, namespace, uid = job.metadata.name, job.metadata.namespace, job.metadata.uid
    if not uid:
        raise JobRefused(reasons.INVALID_SPEC, "metadata.uid is empty: this job was not read from an API server")
    spec = canonical_spec(job.spec.resolved())
    job_dir = f"{VOLUME}/{namespace}/{name}-{uid}"
    domain = f"{namespace}.svc.{settings.cluster_domain}"
    scheme = "rediss" if settings.tls else "redis"
    return ResolvedJob(
        uid=uid,
        name=name,
        namespace=namespace,
        spec=spec,
        layout=Layout(
            job_dir=job_dir,
            data_dir=f"{job_dir}/data",
            model_dir=posixpath.normpath(posixpath.join(VOLUME, spec.model.path)),
            source_dir=VOLUME,
        ),
        endpoints=Endpoints(
            scheduler=f"{name}-scheduler.{domain}:{SCHEDULER_PORT}",
            store=spec.stream.url or f"{scheme}://{name}-store.{domain}:{STORE_PORT}",
        ),
        secrets=_secret_files(spec, settings),
        metrics_path=f"{job_dir}/metrics.jsonl",
        planner_sets_target=job.spec.target_policy_lag is None,
        operator_scales=True,
    )


def _check_paths(spec: RLJobSpec) -> None:
    """Raises JobRefused for a relative path that leads out of the claim to where no volume of the job is."""
    evaluation = spec.data.eval
    paths = {
        "model.path": spec.model.path,
        "model.chatTemplate": spec.model.chat_template,
        "data.train.path": spec.data.train.path,
        "data.eval.path": evaluation.path if evaluation is not None else None,
    }
    mounts = [VOLUME, *(volume.mount_path.rstrip("/") for volume in spec.volumes)]
    for field, path in paths.items():
        if path is None or not posixpath.normpath(path).startswith("../"):
            continue
        inside = posixpath.normpath(posixpath.join(VOLUME, path))
        if not any(inside == mount or inside.startswith(f"{mount}/") for mount in mounts):
            raise JobRefused(
                reasons.INVALID_SPEC,
                f"spec.{field} is {path!r}: relative paths begin at the root of the claim with the job's files, and "
                "this one leaves it: write it as the claim has it, such as models/tiny, or an absolute path below the "
                "mountPath of one of spec.volumes",
            )


def claim_name(spec: RLJobSpec, settings: OperatorSettings) -> str:
    """Name of the claim with the job's files.

    Raises:
        JobRefused: neither the job nor the operator names one.
    """
    claim = spec.weights.volume.persistent_volume_claim
    if claim is not None:
        return claim.claim_name
    if settings.default_claim is not None:
        return settings.default_claim
    raise JobRefused(
        reasons.NO_VOLUME,
        "spec.weights.volume.persistentVolumeClaim is not set and the operator has no default claim: create a claim "
        "that all pods can mount (ReadWriteMany) and write its name there as claimName",
    )


def _secret_files(spec: RLJobSpec, settings: OperatorSettings) -> Secrets:
    stream, own = spec.stream, f"{SECRETS}/ca.crt" if settings.tls else None
    return Secrets(
        token_files={role: f"{SECRETS}/{role}.token" for role in TOKEN_ROLES},
        store_password_files=_store_passwords(spec),
        store_ca_file=(f"{CA}/ca.crt" if stream.ca_secret_ref else None) if stream.url else own,
        tls_ca_file=own,
        tls_cert_file=f"{SECRETS}/tls.crt" if settings.tls else None,
        tls_key_file=f"{SECRETS}/tls.key" if settings.tls else None,
    )


def _store_passwords(spec: RLJobSpec) -> dict[str, str]:
    if spec.stream.url and spec.stream.secret_ref:
        return dict.fromkeys(STORE_ROLES, f"{STORE_SECRETS}/password")
    return {role: f"{SECRETS}/store-{role}.password" for role in STORE_ROLES}
