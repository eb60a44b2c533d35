"""A namespace of a cluster as a place for pods: job.json from a ConfigMap, files from a claim, a Secret for each role.

Whatever a pod may write lies on the claim or in its own /tmp and /dev/shm: root file systems are read-only, and the
user has no home and maybe no name.
"""

from collections.abc import Mapping
from typing import Any, Final

from drumroll.api.cluster_rules import JOB_VOLUME
from drumroll.api.running import JobVolume
from drumroll.job import ResolvedJob
from drumroll_operator.labels import secret_name
from drumroll_operator.resolve import CA, SECRETS, STORE_SECRETS, VOLUME, claim_name
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import ROLES, WORKERS, Mount, Role, Substrate

JOB_FOLDER: Final = "/etc/drumroll"
HEALTH_PORT: Final = 8081
TERMINATION_FILE: Final = "/dev/termination-log"
_COMPUTE: tuple[Role, ...] = ("rollout", "trainer")

_VARIABLES: Final[Mapping[str, str]] = {
    "DRUMROLL_TERMINATION_FILE": TERMINATION_FILE,
    "DRUMROLL_HEALTH_PORT": str(HEALTH_PORT),
    # Caches of all libraries follow it, but for one.
    "HOME": "/tmp",
    "NUMBA_CACHE_DIR": "/tmp/numba",
    # Libraries ask for the user's name, which an arbitrary id does not have.
    "USER": "drumroll",
    "LOGNAME": "drumroll",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def kubernetes_substrate(job: ResolvedJob, settings: OperatorSettings, *, config_map: str) -> Substrate:
    """The job's namespace, with the operator's defaults."""
    return Substrate(
        "kubernetes",
        f"{JOB_FOLDER}/job.json",
        _mounts(job, settings, config_map),
        store_bind="*",
        images={role: image(job, settings, role) for role in ROLES},
        variables=_VARIABLES,
        probes="http",
    )


def image(job: ResolvedJob, settings: OperatorSettings, role: Role) -> str:
    """Image of a role's pods; the store runs in the scheduler's unless it has its own."""
    spec, images = job.spec, settings.images
    scheduler = spec.scheduler.image or images.scheduler.reference
    return {
        "store": spec.stream.embedded.image or scheduler,
        "scheduler": scheduler,
        "rollout": spec.rollout.image or images.rollout.reference,
        "trainer": spec.trainer.image or images.trainer.reference,
    }[role]


def _mounts(job: ResolvedJob, settings: OperatorSettings, config_map: str) -> tuple[Mount, ...]:
    stream = job.spec.stream
    claim = {"persistentVolumeClaim": {"claimName": claim_name(job.spec, settings)}}
    mounts = [
        Mount("drumroll-job", JOB_FOLDER, {"configMap": {"name": config_map}}, read_only=True),
        Mount(JOB_VOLUME, VOLUME, claim),
        *(_secret(f"drumroll-secrets-{role}", SECRETS, secret_name(job, role), (role,)) for role in ROLES),
    ]
    if stream.url and stream.secret_ref:
        mounts.append(_secret("drumroll-store", STORE_SECRETS, stream.secret_ref, WORKERS))
    if stream.ca_secret_ref:
        mounts.append(_secret("drumroll-store-ca", CA, stream.ca_secret_ref, WORKERS, key="ca.crt"))
    mounts.append(Mount("drumroll-tmp", "/tmp", {"emptyDir": {}}))
    mounts.append(Mount("drumroll-shm", "/dev/shm", {"emptyDir": {"medium": "Memory"}}, _COMPUTE))
    mounts += [_job_volume(volume) for volume in job.spec.volumes]
    return tuple(mounts)


def _secret(name: str, path: str, secret: str, roles: tuple[Role, ...], *, key: str | None = None) -> Mount:
    # Readable for all in the pod: whether its user has the group of the volume is the platform's business.
    source: dict[str, Any] = {"secretName": secret, "defaultMode": 0o444}
    if key is not None:
        source["items"] = [{"key": key, "path": key}]
    return Mount(name, path, {"secret": source}, roles, read_only=True)


def _job_volume(volume: JobVolume) -> Mount:
    source: dict[str, Any] = volume.to_wire()
    for key in ("name", "mountPath", "readOnly"):
        del source[key]
    return Mount(volume.name, volume.mount_path, source, WORKERS, read_only=volume.read_only)
