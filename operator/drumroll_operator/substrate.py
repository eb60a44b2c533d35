"""What differs between the places where a job's pods run: volumes, where job.json lies, images, how pods are reached.

Everything else about a pod comes from the job alone, in `manifests`. Substrates are values; making one does no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drumroll.job import ResolvedJob

Role = Literal["store", "scheduler", "rollout", "trainer"]
ROLES: tuple[Role, ...] = ("store", "scheduler", "rollout", "trainer")


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume and where pods see it."""

    name: str
    path: str
    source: Mapping[str, Any]
    """A Kubernetes volume source, such as {"persistentVolumeClaim": {...}}."""
    roles: tuple[Role, ...] = ROLES
    """Who gets it."""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Substrate:
    """A place where pods run."""

    name: Literal["local", "kubernetes"]
    job_file: str
    """Path of job.json inside a pod."""
    mounts: tuple[Mount, ...]
    store_bind: str
    """Address that the embedded store listens on."""
    cores: int | None = None
    """Cores that the job's processes share; None: each pod has its own by its resources."""
    image: str | None = None
    """Image of all pods; None: this machine's own Python."""


def local_substrate(job: ResolvedJob, *, run_dir: str, cores: int) -> Substrate:
    """This machine: volumes are directories that a process sees at their own paths."""
    secret_files = {**job.secrets.token_files, **job.secrets.store_password_files}
    mounts = [Mount("run", run_dir, _directory(run_dir))]
    # A Redis of one's own keeps its password files where the user has them.
    outside = sorted({path.rpartition("/")[0] for path in secret_files.values() if not path.startswith(run_dir)})
    mounts += [Mount(f"secret-{i}", path, _directory(path), read_only=True) for i, path in enumerate(outside)]
    readers: tuple[Role, ...] = ("scheduler", "rollout", "trainer")
    mounts.append(Mount("model", job.layout.model_dir, _directory(job.layout.model_dir), readers, read_only=True))
    return Substrate("local", f"{run_dir}/job.json", tuple(mounts), store_bind="127.0.0.1", cores=cores)


def kubernetes_substrate(job: ResolvedJob, *, config_map: str, claim: str, secrets: str, image: str) -> Substrate:
    """A namespace of a cluster: job.json from a ConfigMap, files from a claim, a Secret for each role."""
    volume = job.layout.job_dir.removesuffix(f"/{job.namespace}/{job.name}-{job.uid}")
    mounts = [
        Mount("job", "/etc/drumroll", {"configMap": {"name": config_map}}, read_only=True),
        Mount("volume", volume, {"persistentVolumeClaim": {"claimName": claim}}),
        *(
            Mount(
                f"secrets-{role}",
                "/var/run/secrets/drumroll",
                {"secret": {"secretName": f"{secrets}-{role}", "defaultMode": 0o440}},
                (role,),
                read_only=True,
            )
            for role in ROLES
        ),
    ]
    return Substrate("kubernetes", "/etc/drumroll/job.json", tuple(mounts), store_bind="0.0.0.0", image=image)


def _directory(path: str) -> dict[str, Any]:
    return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
