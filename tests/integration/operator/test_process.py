"""The operator as a process: its command line, its health, its Lease and its end."""

import asyncio
import contextlib
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from drumroll_operator.cluster import LEASES, Raw

from drumroll.testing import eventually

SETTINGS = {
    "images": {role: {"reference": f"localhost/{role}:1"} for role in ("scheduler", "rollout", "trainer")},
    "defaultClaim": "files",
}


@dataclass
class Process:
    handle: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def read(self) -> None:
        assert self.handle.stderr is not None
        async for line in self.handle.stderr:
            self.lines.append(line.decode())

    @property
    def log(self) -> str:
        return "".join(self.lines)

    async def port(self) -> int:
        found = await eventually(lambda: re.search(r"on port (\d+)", self.log), 30.0, "the port in the log")
        return int(found.group(1))

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{await self.port()}{path}"
        return await asyncio.to_thread(_get, url)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[tuple[Process, asyncio.Task[None]]] = []

    async def run(*arguments: str) -> Process:
        handle = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "drumroll_operator", *arguments, stderr=asyncio.subprocess.PIPE
        )
        process = Process(handle)
        started.append((process, asyncio.create_task(process.read())))
        return process

    yield run
    for process, reading in started:
        with contextlib.suppress(ProcessLookupError):
            process.handle.kill()
        await process.handle.wait()
        await reading


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef0123456789abcdef")
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "keyFile": str(key)}))
    return file


def confine(file: Path, namespace: str) -> None:
    """Have the operator look after one namespace."""
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"watchNamespaces": [namespace]}))


async def test_mistakes_in_the_settings_are_told_in_a_sentence(start: Start, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("images: {}\ncolour: red\n")
    process = await start("--settings", str(wrong))
    assert await process.handle.wait() == 2
    await eventually(lambda: "colour" in process.log)
    assert "error: the operator's settings" in process.log
    assert "Traceback" not in process.log


async def test_without_a_way_to_an_api_server_it_says_what_to_do(start: Start, settings_file: Path) -> None:
    process = await start("--settings", str(settings_file), "--kubeconfig", "/nonexistent/config")
    assert await process.handle.wait() == 2
    await eventually(lambda: "--kubeconfig" in process.log)


@pytest.mark.cluster
async def test_one_of_two_leads_the_other_takes_over_and_a_lost_lease_ends_the_process(
    start: Start, settings_file: Path, stage: Any, api_server: Any
) -> None:
    confine(settings_file, stage.namespace)
    await stage.admin.create(
        {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": "operator", "namespace": stage.namespace},
        }
    )
    arguments = (
        "--settings",
        str(settings_file),
        "--kubeconfig",
        api_server.environment["KUBECONFIG"],
        "--lease",
        f"{stage.namespace}/operator",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    )

    async def lease() -> Raw:
        return dict((await stage.get(LEASES, "operator")).get("spec") or {})

    async def held() -> str:
        return str((await lease()).get("holderIdentity") or "")

    first = await start(*arguments)
    holder = await eventually(held, 30.0)
    second = await start(*arguments)
    await eventually(lambda: "is held by" in second.log, 30.0)
    assert (await second.get("/readyz")) == (200, "ok\n"), "whoever waits is ready to take over"
    await stage.submit()
    await stage.until_running()
    before = await stage.uids()

    async def ready() -> bool:
        return (await first.get("/readyz"))[0] == 200 and (await first.get("/healthz"))[0] == 200

    await eventually(ready)
    text = (await first.get("/metrics"))[1]
    assert 'drumroll_operator_jobs{phase="Running"} 1.0' in text
    assert "drumroll_operator_leads 1.0" in text
    assert "drumroll_operator_leads 0.0" in (await second.get("/metrics"))[1]
    first.handle.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(first.handle.wait(), 20) == 0, first.log

    async def passed_on() -> bool:
        return await held() not in ("", holder)

    await eventually(passed_on, 10.0, "the next holder, without waiting for the term's end")
    await stage.end_pod("job-rollout-0", 1, ago_s=120)

    async def replaced() -> bool:
        return (await stage.uids()).get("job-rollout-0") not in (None, before["job-rollout-0"])

    await eventually(replaced, 20.0)
    taken = {**await stage.get(LEASES, "operator"), "spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}}
    del taken["metadata"]["resourceVersion"]
    await stage.admin.merge(LEASES, stage.namespace, "operator", {"spec": taken["spec"]})
    assert await asyncio.wait_for(second.handle.wait(), 20) == 75, second.log
    assert await held() == "thief", "whoever has lost the Lease leaves it alone"
    now = await stage.uids()
    assert {name for name, uid in now.items() if before[name] != uid} == {"job-rollout-0"}
