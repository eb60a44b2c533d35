"""A run directory: everything one local job writes, and what resuming it needs.

RUN_DIR/
  job.json         the resolved job; source.json: the job as it was given
  secrets/         tokens and store passwords, readable by this user alone
  data/            the prepared data set
  volume/<namespace>/<job>-<uid>/    weights, checkpoints, journal, samples, store
  logs/            one file per process
  metrics.jsonl    one row per trained step; timeline.jsonl: what happened when; run.svg: the picture
"""

import fcntl
import json
import os
import secrets
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from drumroll.api.spec import RLJob
from drumroll.errors import UserError
from drumroll.job import Endpoints, Layout, ResolvedJob, Secrets

TOKEN_ROLES = ("scheduler", "rollout", "trainer", "viewer")
STORE_ROLES = ("scheduler", "rollout", "trainer")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory and the job in it."""

    path: Path
    job: ResolvedJob

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.jsonl"


def default_path(job: RLJob, parent: Path) -> Path:
    """The first unused runs/<name>, runs/<name>-2, and so on."""
    number, path = 1, parent / job.metadata.name
    while path.exists():
        number += 1
        path = parent / f"{job.metadata.name}-{number}"
    return path


def resolve(job: RLJob, path: Path, *, uid: str, source_dir: Path, port: int | None) -> ResolvedJob:
    """The resolved job of a run directory; ports are free ones of this moment unless given.

    Raises:
        UserError: the given port is in use.
    """
    root = path.resolve()
    job_dir = root / "volume" / job.metadata.namespace / f"{job.metadata.name}-{uid}"
    spec = job.spec.resolved()
    return ResolvedJob(
        uid=uid,
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        spec=spec,
        layout=Layout(
            job_dir=str(job_dir),
            data_dir=str(root / "data"),
            model_dir=str((source_dir / spec.model.path).resolve()),
            source_dir=str(source_dir.resolve()),
        ),
        endpoints=Endpoints(
            scheduler=f"127.0.0.1:{require_free(port) if port else free_port()}",
            store=spec.stream.url or f"redis://127.0.0.1:{free_port()}",
        ),
        secrets=Secrets(
            token_files={role: str(root / "secrets" / f"{role}.token") for role in TOKEN_ROLES},
            store_password_files=_store_passwords(job, root, source_dir),
        ),
        metrics_path=str(root / "metrics.jsonl"),
    )


def _store_passwords(job: RLJob, root: Path, source_dir: Path) -> dict[str, str]:
    if job.spec.stream.url and job.spec.stream.secret_ref:
        return {role: str((source_dir / job.spec.stream.secret_ref / "password").resolve()) for role in STORE_ROLES}
    return {role: str(root / "secrets" / f"store-{role}.password") for role in STORE_ROLES}


def new_uid() -> str:
    """A uid as the API server would make one."""
    return str(uuid.uuid4())


def create(job: RLJob, resolved: ResolvedJob, path: Path) -> RunDir:
    """Make the directory, its secrets and job.json; the data set is there already or is written by the caller."""
    (path / "logs").mkdir(parents=True, exist_ok=True)
    _write_secrets(path / "secrets")
    (path / "source.json").write_text(json.dumps(job.to_wire(), indent=1) + "\n")
    for folder in ("weights", "checkpoints", "journal", "samples", "store"):
        (Path(resolved.layout.job_dir) / folder).mkdir(parents=True, exist_ok=True)
    (path / "job.json").write_text(resolved.to_json() + "\n")
    return RunDir(path, resolved)


def read(path: Path) -> RunDir:
    """An existing run directory.

    Raises:
        UserError: it is none.
    """
    if not (path / "job.json").is_file():
        raise UserError(f"{path} is not a run directory: it has no job.json. Give a directory that `drumroll run` made")
    return RunDir(path, ResolvedJob.load(path / "job.json"))


def hold(path: Path) -> int:
    """Lock the directory for this process; the descriptor, to be kept open.

    Raises:
        UserError: another `drumroll run` uses it.
    """
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(f"another `drumroll run` uses {path}: stop it, or give another --run-dir") from error
    return descriptor


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int) -> int:
    """The port itself.

    Raises:
        UserError: it is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UserError(f"--port {port} cannot be used: {error}. Leave it out to get a free one") from error
    return port


def _write_secrets(folder: Path) -> None:
    """Tokens and passwords, made once: a resumed run keeps them."""
    folder.mkdir(mode=0o700, exist_ok=True)
    names = [f"{role}.token" for role in TOKEN_ROLES] + [f"store-{role}.password" for role in STORE_ROLES]
    for name in names:
        if not (folder / name).exists():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32))
