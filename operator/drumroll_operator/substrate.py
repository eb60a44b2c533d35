"""What differs between the places where a job's pods run: volumes, where job.json lies, images, how pods are reached.

Everything else about a pod comes from the job alone, in `manifests`. Substrates are values; making one does no I/O.
The substrate of a cluster is made in `cluster_substrate`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from drumroll.job import ResolvedJob

Role = Literal["store", "scheduler", "rollout", "trainer"]
ROLES: tuple[Role, ...] = ("store", "scheduler", "rollout", "trainer")
WORKERS: tuple[Role, ...] = ("scheduler", "rollout", "trainer")
"""Those that read the job's files."""


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
    """Address that the embedded store listens on; *: all."""
    cores: int | None = None
    """Cores that the job's processes share; None: each pod has its own by its resources."""
    images: Mapping[Role, str] = field(default_factory=dict)
    """Image of each role; empty: this machine's own Python."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that this place needs in every pod. The job's own win."""
    probes: Literal["command", "http"] = "command"
    """How processes are asked whether they live: by a command beside them, or at the port of `HEALTH_PORT`."""


def local_substrate(job: ResolvedJob, *, run_dir: str, cores: int) -> Substrate:
    """This machine: volumes are directories that a process sees at their own paths."""
    secret_files = {**job.secrets.token_files, **job.secrets.store_password_files}
    mounts = [Mount("run", run_dir, _directory(run_dir))]
    # A Redis of one's own keeps its password files where the user has them.
    outside = sorted({path.rpartition("/")[0] for path in secret_files.values() if not path.startswith(run_dir)})
    mounts += [Mount(f"secret-{i}", path, _directory(path), read_only=True) for i, path in enumerate(outside)]
    mounts.append(Mount("model", job.layout.model_dir, _directory(job.layout.model_dir), WORKERS, read_only=True))
    return Substrate("local", f"{run_dir}/job.json", tuple(mounts), store_bind="127.0.0.1", cores=cores)


def _directory(path: str) -> dict[str, Any]:
    return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
