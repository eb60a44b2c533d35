"""One pod's processes: started, started again, probed, ended; with real processes that do almost nothing."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from drumroll_cli.local.podspec import Container, LocalPod, Probe
from drumroll_cli.local.process import Process, last_words
from drumroll_cli.local.supervisor import Host, Supervisor, answers_http, end_task

from drumroll.errors import EXIT_FENCED, EXIT_USER
from drumroll.testing import eventually

Supervise = Callable[..., Supervisor]


class Desk:
    """What a runner is to its supervisors."""

    def __init__(self, folder: Path) -> None:
        self.ended = False
        self.progress_of: Callable[[], int] = lambda: 0
        self.messages: list[str] = []
        self.changes = 0
        self.host = Host(
            logs=folder,
            cwd=str(folder),
            env={"PATH": os.environ["PATH"], "SHELL_SECRET": "from-shell"},
            job_ended=lambda: self.ended,
            progress=lambda: self.progress_of(),
            tell=self.messages.append,
            changed=self._change,
        )

    def _change(self) -> None:
        self.changes += 1


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def supervise(desk: Desk, tmp_path: Path) -> Supervise:
    """supervise(script, ...): a supervisor of a shell."""

    def make(
        script: str, *, init: str | None = None, probe: Probe | None = None, restart: str = "OnFailure"
    ) -> Supervisor:
        def shell(text: str, probe: Probe | None = None) -> Container:
            secret = {"TOKEN": "SHELL_SECRET", "MISSING": "NOT_SET"}
            return Container("main", ("sh", "-c", text), {"A": "1"}, secret, 0, probe)

        before = (shell(init),) if init else ()
        pod = LocalPod("part", "part", before, shell(script, probe), (str(tmp_path / "dir"),), "OnFailure", 5.0)
        return Supervisor(pod, desk.host, gpus="3")

    return make


def probe(command: str) -> Probe:
    return Probe(("sh", "-c", command), None, initial_delay_s=0.0, period_s=0.05, timeout_s=5.0, failures=2)


async def test_a_process_gets_its_variables_and_directories(supervise: Supervise, tmp_path: Path) -> None:
    part = supervise('echo "$A|$TOKEN|$CUDA_VISIBLE_DEVICES|${MISSING-unset}"; test -d dir; exit 2')
    await part.run()
    assert (tmp_path / "part.log").read_text() == "1|from-shell|3|unset\n"


async def test_a_killed_process_is_started_again(supervise: Supervise, desk: Desk, tmp_path: Path) -> None:
    part = supervise("test -e once || { touch once; kill -9 $$; }; exit 0")
    desk.ended = True
    await asyncio.wait_for(part.run(), 30)
    assert (part.state, part.restarts, part.failure) == ("done", 1, None)
    assert desk.messages == ["part ended with signal SIGKILL; starting it again in 0.2 s"]
    assert desk.changes == 4


async def test_an_end_before_the_job_is_over_is_a_restart(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumroll_cli.local.supervisor.AHEAD_S", 0.1)
    part = supervise("test -e once && exit 2; touch once; exit 0")
    await asyncio.wait_for(part.run(), 30)
    assert part.restarts == 1
    assert part.users_mistake


async def test_the_users_mistake_ends_it_with_the_last_error(supervise: Supervise) -> None:
    part = supervise(f'echo "now ERROR part x: reward module is missing" >&2; echo noise; exit {EXIT_USER}')
    await part.run()
    assert (part.state, part.users_mistake) == ("failed", True)
    assert part.failure == "part cannot run: see its last log lines\nnow ERROR part x: reward module is missing"


async def test_failures_in_a_row_without_progress_end_it(supervise: Supervise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumroll_cli.local.backoff.FIRST_DELAY_S", 0.001)
    part = supervise("exit 3")
    await asyncio.wait_for(part.run(), 30)
    assert part.failure == "part ended 6 times in a row without progress, last with exit code 3"
    assert not part.users_mistake


async def test_progress_of_the_job_pardons_failures(
    supervise: Supervise, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumroll_cli.local.backoff.FIRST_DELAY_S", 0.001)
    counter = iter(range(100))
    desk.progress_of = lambda: next(counter)
    part = supervise("echo x >> lives; test $(wc -l < lives) -lt 12 || exit 2; exit 3")
    await asyncio.wait_for(part.run(), 30)
    assert part.restarts == 11
    assert part.users_mistake


async def test_a_replaced_process_is_not_started_again(supervise: Supervise, desk: Desk) -> None:
    part = supervise(f"exit {EXIT_FENCED}")
    await part.run()
    assert (part.state, part.failure) == ("done", None)
    assert desk.messages == ["part was replaced by a successor"]


async def test_a_failed_init_container_is_tried_again(supervise: Supervise, tmp_path: Path) -> None:
    part = supervise("echo main; exit 2", init="echo init; test -e once || { touch once; exit 1; }")
    await asyncio.wait_for(part.run(), 30)
    assert (tmp_path / "part.log").read_text().split() == ["init", "init", "main"]


async def test_a_process_that_does_not_answer_its_probe_is_killed(supervise: Supervise, desk: Desk) -> None:
    part = supervise("test -e once && exit 2; touch once; kill -STOP $$", probe=probe("exit 1"))
    await asyncio.wait_for(part.run(), 30)
    assert part.restarts == 1
    assert "does not answer its probe" in desk.messages[0]
    assert "signal SIGKILL" in desk.messages[1]


async def test_a_probe_that_answers_changes_nothing(supervise: Supervise, tmp_path: Path) -> None:
    part = supervise("until test -e probed; do sleep 0.05; done; exit 2", probe=probe("touch probed"))
    await asyncio.wait_for(part.run(), 30)
    assert part.restarts == 0


async def test_a_task_that_loses_a_cancellation_is_ended_all_the_same() -> None:
    cancelled = []

    async def stubborn() -> None:
        while len(cancelled) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(end_task(task), 30)
    assert len(cancelled) == 2


async def test_an_http_probe_wants_a_good_status() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        writer.write(b"HTTP/1.1 %s x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % line.split()[1][1:])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert await asyncio.to_thread(answers_http, f"{base}/200", 5.0)
    assert not await asyncio.to_thread(answers_http, f"{base}/503", 5.0)
    server.close()
    await server.wait_closed()
    assert not await asyncio.to_thread(answers_http, f"{base}/200", 5.0)


async def test_stop_asks_and_kill_takes_the_whole_group(supervise: Supervise, tmp_path: Path) -> None:
    part = supervise("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    task = asyncio.create_task(part.run())
    await eventually(lambda: (tmp_path / "part.log").exists() and "ready" in (tmp_path / "part.log").read_text())
    part.stop()
    await asyncio.wait_for(task, 10)
    assert (tmp_path / "part.log").read_text().split() == ["ready", "asked"]

    stubborn = supervise("trap '' TERM; sleep 600 & echo $! > child; wait; wait")
    task = asyncio.create_task(stubborn.run())
    child = await eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    stubborn.kill()
    await asyncio.wait_for(task, 10)
    await eventually(lambda: not alive(int(child)), 10.0, "the end of the whole group")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_what_a_process_leaves_in_its_group_ends_with_it(tmp_path: Path) -> None:
    process = await Process.start(
        ["sh", "-c", "sleep 600 & echo $! > child"], dict(os.environ), log=tmp_path / "log", cwd=str(tmp_path)
    )
    assert await process.wait() == 0
    child = int((tmp_path / "child").read_text())
    await eventually(lambda: not alive(child), 10.0, "the end of what was left")


def test_last_words_are_the_last_error_or_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text("\n".join(str(i) for i in range(9)))
    assert last_words(log, lines=2) == "7\n8"
    log.write_text("a\nt ERROR x: first\nt ERROR x: second\nz\n")
    assert last_words(log) == "t ERROR x: second"
