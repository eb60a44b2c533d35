"""The embedded store over TLS: nothing plain listens, bytes arrive as they were sent, ends are passed on."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import redis
from drumroll_operator.certificates import ServerCertificates, server_certificates

from drumroll.embedded import free_port
from drumroll.ping import main as ping
from drumroll.testing import eventually_sync
from drumroll.valkey import ServerSettings, server_command

PASSWORD = "password-of-scheduler"


def certificates(seed: bytes = b"s" * 32) -> ServerCertificates:
    return server_certificates(seed, subject="test", names=("localhost",), created=datetime.now(UTC))


@dataclass
class Encrypted:
    """A store behind TLS."""

    settings: ServerSettings
    folder: Path
    process: subprocess.Popen[bytes]

    def ping(self, ca: str = "ca.crt") -> int:
        file = self.settings.password_files["scheduler"]
        return ping([f"--port={self.settings.port}", f"--password-file={file}", f"--ca={self.folder / ca}"])

    def client(self, ca: str = "ca.crt") -> "redis.Redis":
        return redis.Redis(
            host="localhost",
            port=self.settings.port,
            username="scheduler",
            password=PASSWORD,
            ssl=True,
            ssl_ca_certs=str(self.folder / ca),
            socket_timeout=20,
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Encrypted]:
    made = certificates()
    for name, text in (
        ("ca.crt", made.authority),
        ("tls.crt", made.certificate),
        ("tls.key", made.key),
        ("other.crt", certificates(b"o" * 32).authority),
        ("scheduler.password", PASSWORD),
    ):
        (tmp_path / name).write_text(text)
    files = {"scheduler": tmp_path / "scheduler.password"}
    settings = ServerSettings(free_port(), tmp_path / "store", "uid", 256 << 20, files)
    settings = replace(settings, certificate=tmp_path / "tls.crt", private_key=tmp_path / "tls.key")
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, *server_command(settings)[1:]]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    running = Encrypted(settings, tmp_path, process)
    eventually_sync(lambda: running.ping() == 0, 30.0, "an answer of the store")
    yield running
    process.kill()
    process.wait()


def test_large_values_arrive_as_they_were_sent(store: Encrypted) -> None:
    value = os.urandom(20 << 20)
    with store.client() as client:
        key = "drumroll:{uid}:samples"
        entry = client.xadd(key, {"p": value})
        ((_, fields),) = client.xrange(key, entry, entry)
    assert fields[b"p"] == value


def test_nothing_plain_is_answered_and_no_other_authority_trusted(store: Encrypted) -> None:
    with socket.create_connection(("localhost", store.settings.port), 10) as plain:
        plain.sendall(b"PING\r\n")
        assert b"PONG" not in plain.recv(100)
    with store.client("other.crt") as client, pytest.raises(redis.exceptions.ConnectionError, match="certificate"):
        client.ping()
    family = psutil.Process(store.process.pid).children(recursive=True)
    listening = [c.laddr.port for child in family for c in child.net_connections("tcp") if c.status == "LISTEN"]
    assert listening == []


def test_sigterm_ends_the_store_in_good_order(store: Encrypted) -> None:
    with store.client() as client:
        client.ping()
        store.process.send_signal(signal.SIGTERM)
        assert store.process.wait(30) == 0
    assert "bye bye" in (store.folder / "log").read_text()


def test_the_stores_end_is_the_fronts_and_the_fronts_the_stores(store: Encrypted) -> None:
    (server,) = psutil.Process(store.process.pid).children()
    server.kill()
    assert store.process.wait(30) == 137
    command = [sys.executable, *server_command(store.settings)[1:]]
    again = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    eventually_sync(lambda: store.ping() == 0, 30.0)
    (server,) = psutil.Process(again.pid).children()
    again.kill()
    again.wait()
    server.wait(20)


def test_a_certificate_that_cannot_be_read_is_told(
    store: Encrypted, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = replace(store.settings, port=free_port(), directory=tmp_path / "more", certificate=tmp_path / "none")
    done = subprocess.run([sys.executable, *server_command(settings)[1:]], check=False)
    assert done.returncode == 2
    assert "cannot be reached over TLS" in capfd.readouterr().err
