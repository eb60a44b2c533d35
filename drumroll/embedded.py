"""A running embedded store, for tests and benches: on a port and in a directory of its own, to be killed at will."""

import asyncio
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from drumroll.errors import StoreUnavailable
from drumroll.store import Redis, command, connect_to
from drumroll.testing import eventually
from drumroll.valkey import ROLES, ServerSettings, prepare


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedStore:
    """`async with EmbeddedStore(tmp_path, uid) as store: redis = store.connect("scheduler")`.

    Beside the roles it has a user `admin` who may do all (FLUSHALL, CONFIG SET). Leaving it kills the server and closes
    the clients.
    """

    def __init__(self, directory: Path, uid: str, *, max_bytes: int = 64 << 20, persistent: bool = True) -> None:
        """`persistent`: False runs it without an append-only file, as no store of a job should."""
        self.directory = directory / "store"
        directory.mkdir(parents=True, exist_ok=True)
        self.password_files = {role: directory / f"{role}.password" for role in (*ROLES, "admin")}
        for role, path in self.password_files.items():
            path.write_text(f"password-of-{role}\n")
        self._persistent = persistent
        self._process: asyncio.subprocess.Process | None = None
        self._clients: list[Redis] = []
        self.settings = ServerSettings(
            port=free_port(),
            directory=self.directory,
            uid=uid,
            max_bytes=max_bytes,
            password_files={role: self.password_files[role] for role in ROLES},
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.settings.port}"

    def connect(self, role: str, *, port: int | None = None, timeout_s: float = 10.0) -> Redis:
        """A client for a role, closed with the store; `port` is that of a proxy in between."""
        url = f"redis://127.0.0.1:{port or self.settings.port}"
        client = connect_to(url, username=role, password_file=self.password_files[role], timeout_s=timeout_s)
        self._clients.append(client)
        return client

    async def start(self) -> None:
        """Start the server (again) and wait until it answers."""
        arguments = prepare(self.settings)
        with (self.directory / "users.acl").open("a") as users:
            users.write(f"user admin on >{self.password_files['admin'].read_text().strip()} ~* +@all\n")
        if not self._persistent:
            arguments += ["--appendonly", "no"]
        with (self.directory / "valkey.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*arguments, stdout=log, stderr=log)
        probe = self.connect("scheduler", timeout_s=1.0)
        await eventually(lambda: self._answers(probe), 20.0, "an answer of the store")

    async def kill(self) -> None:
        """SIGKILL; what was synced stays in the directory."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()
        for client in self._clients:
            await client.aclose()

    async def _answers(self, probe: Redis) -> bool:
        if self._process is not None and self._process.returncode is not None:
            raise AssertionError(f"the store ended with {self._process.returncode}: see valkey.log")
        try:
            return bool(await command(probe, "PING"))
        except StoreUnavailable:
            return False
