"""A run directory: everything one local job writes, and what resuming it needs.

RUN_DIR/
  job.json         the resolved job; source.json: the job as it was given
  secrets/         tokens and store passwords, readable by this user alone
  data/            the prepared data set
  volume/<namespace>/<job>-<uid>/    weights, checkpoints, journal, samples, store
  logs/            one file per process; processes.json: pod name to pid, while it runs
  metrics.jsonl    one row per trained step; eval.jsonl: one per evaluation; timeline.jsonl: what happened when;
                   run.svg: the picture
"""

import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from drumroll.api.spec import RLJob
from drumroll.errors import UserError
from drumroll.job import Endpoints, Layout, ResolvedJob, Secrets

TOKEN_ROLES = ("scheduler", "rollout", "trainer", "viewer")
STORE_ROLES = ("scheduler", "rollout", "trainer")
_CHANGED = "change-accepted"
_OWN_PORTS = 16_384
"""Ports below the outgoing ones that are tried."""


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
            store_ca_file=_store_authorities(job, source_dir),
        ),
        metrics_path=str(root / "metrics.jsonl"),
        planner_sets_target=job.spec.target_policy_lag is None,
    )


def _store_authorities(job: RLJob, source_dir: Path) -> str | None:
    secret = job.spec.stream.ca_secret_ref
    return None if secret is None else str((source_dir / secret / "ca.crt").resolve())


def _store_passwords(job: RLJob, root: Path, source_dir: Path) -> dict[str, str]:
    if job.spec.stream.url and job.spec.stream.secret_ref:
        return {role: str((source_dir / job.spec.stream.secret_ref / "password").resolve()) for role in STORE_ROLES}
    return {role: str(root / "secrets" / f"store-{role}.password") for role in STORE_ROLES}


def note_data_change(path: Path) -> None:
    """The user has accepted another data set: older checkpoints and journals of this run name the one before."""
    (path / "data" / _CHANGED).touch()


def data_has_changed(path: Path) -> bool:
    """Whether that has happened in this run."""
    return (path / "data" / _CHANGED).exists()


def new_uid() -> str:
    """A uid as the API server would make one."""
    return str(uuid.uuid4())


def create(job: RLJob, resolved: ResolvedJob, path: Path) -> RunDir:
    """Make the directory, its secrets and job.json; the data set is there already or is written by the caller."""
    (path / "logs").mkdir(parents=True, exist_ok=True)
    _write_secrets(path / "secrets")
    _write_private(path / "source.json", json.dumps(job.to_wire(), indent=1) + "\n")
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


@contextlib.contextmanager
def new(path: Path) -> Iterator[int]:
    """Make and hold the directory of a new run. Where its run never comes to be, all that was made is removed again.

    Raises:
        UserError: there is something in it already, or it cannot be made.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    lock = hold(path)
    try:
        _require_empty(path)
        yield lock
    except _NotEmpty:
        os.close(lock)
        raise
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        if path not in made:
            path.mkdir(exist_ok=True)
        for folder in made[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()
        os.close(lock)
        raise


class _NotEmpty(UserError):
    """Nothing of it is ours to remove."""


def _require_empty(path: Path) -> None:
    if (path / "job.json").exists():
        raise _NotEmpty(f"{path} holds a run already: go on with it by --resume {path}, or give another --run-dir")
    if set(os.listdir(path)) - {".lock"}:
        (path / ".lock").unlink()
        raise _NotEmpty(f"{path} is not empty: give a new directory by --run-dir")


def hold(path: Path) -> int:
    """Lock the directory for this process; the descriptor, to be kept open.

    Raises:
        UserError: another `drumroll run` uses it, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UserError(f"{path} cannot be used as a run directory: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(f"another `drumroll run` uses {path}: stop it, or give another --run-dir") from error
    return descriptor


def free_port() -> int:
    """A port of the loopback interface that nobody uses now, outside the range from which the kernel takes ports for
    outgoing connections: otherwise one of them may hold it when a killed server wants it back."""
    low = _lowest_outgoing_port()
    for port in random.sample(range(max(1024, low - _OWN_PORTS), low), k=200):
        if _is_free(port):
            return port
    raise UserError(f"no port below {low} is free: end what listens there")


def _lowest_outgoing_port() -> int:
    try:
        return max(4096, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


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
            _write_private(folder / name, secrets.token_urlsafe(32))


def _write_private(path: Path, text: str) -> None:
    """For this user alone: tokens, and environment values as the user gave them."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def write_processes(path: Path, pids: Mapping[str, int]) -> None:
    """Say which processes of the run exist now; no file where there is none."""
    file = path / "processes.json"
    if not pids:
        file.unlink(missing_ok=True)
        return
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(dict(pids), indent=1) + "\n")
    temporary.replace(file)
