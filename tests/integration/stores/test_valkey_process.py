"""`python -m drumroll.valkey` as the runner starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from drumroll.embedded import free_port
from drumroll.errors import StoreUnavailable, TemporaryError
from drumroll.store import Redis, check, command, connect_to
from drumroll.testing import eventually
from drumroll.valkey import ServerSettings, hold_directory, main, require_free, server_command

SECRET = "sentinel-9f3c"


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    files = {role: tmp_path / f"{role}.password" for role in ("scheduler", "rollout", "trainer")}
    for file in files.values():
        file.write_text(SECRET)
    return ServerSettings(free_port(), tmp_path / "store", "u1", 1 << 20, files)


@contextmanager
def running(arguments: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:  # type: ignore[type-arg]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments[1:]], stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def client_of(settings: ServerSettings) -> AsyncIterator[Redis]:
    url = f"redis://127.0.0.1:{settings.port}"
    client = connect_to(url, username="scheduler", password_file=settings.password_files["scheduler"])

    async def answers() -> bool:
        try:
            return bool(await command(client, "PING"))
        except StoreUnavailable:
            return False

    await eventually(answers, 20.0, "an answer of the store")
    yield client
    await client.aclose()


async def test_the_command_becomes_a_sound_server_that_keeps_its_data(settings: ServerSettings, tmp_path: Path) -> None:
    for turn in range(2):
        with running(server_command(settings), tmp_path / "log") as process:
            async with client_of(settings) as client:
                assert (await check(client)).problems == ()
                assert await command(client, "HSET", "drumroll:{u1}:snapshot", "seq", 1) == 1 - turn
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
    assert SECRET not in (tmp_path / "log").read_text()


async def test_without_arguments_all_comes_from_the_job(settings: ServerSettings, tmp_path: Path) -> None:
    job = {
        "uid": "u1",
        "name": "j",
        "namespace": "default",
        "spec": {
            "model": {"path": "m"},
            "data": {"train": {"path": "d"}},
            "reward": {"type": "math"},
            "stream": {"embedded": {"maxBytes": "64Mi"}},
        },
        "layout": {"jobDir": str(tmp_path), "dataDir": "d", "modelDir": "m", "sourceDir": "s"},
        "endpoints": {"scheduler": "127.0.0.1:1", "store": f"redis://127.0.0.1:{settings.port}"},
        "secrets": {"storePasswordFiles": {role: str(file) for role, file in settings.password_files.items()}},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    environment = {"DRUMROLL_JOB": str(tmp_path / "job.json"), "DRUMROLL_ROLE": "store"}
    with running(["python", "-m", "drumroll.valkey"], tmp_path / "log", environment):
        async with client_of(settings) as client:
            reply = await command(client, "CONFIG", "GET", "maxmemory")
            assert int(reply[1]) == (80 << 20) + (64 << 20)


def test_a_port_in_use_is_the_user_s_to_solve(settings: ServerSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.port))
        taken.listen()
        assert main(server_command(settings)[3:]) == 2
    assert f"port {settings.port} on 127.0.0.1 cannot be used" in capsys.readouterr().err
    require_free("127.0.0.1", settings.port)


def test_two_servers_never_share_a_directory(tmp_path: Path) -> None:
    descriptor = hold_directory(tmp_path)
    with pytest.raises(TemporaryError, match="another store runs in"):
        hold_directory(tmp_path)
    os.close(descriptor)
    os.close(hold_directory(tmp_path))


def test_a_directory_that_cannot_be_made_is_told(settings: ServerSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command_line = server_command(replace(settings, directory=tmp_path / "file" / "store"))
    assert main(command_line[3:]) == 2
