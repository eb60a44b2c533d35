"""The lines that `drumroll top` reads from inside a scheduler's pod."""

import asyncio
import io
import os
import sys
from typing import Any

import pytest
from drumroll_proto.v1 import scheduler_pb2
from google.protobuf.json_format import Parse

from drumroll import status_feed
from drumroll.embedded import free_port


async def feed(environment: dict[str, str], *arguments: str) -> "asyncio.subprocess.Process":
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "drumroll.status_feed", *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def read(line: bytes) -> scheduler_pb2.StatusReply:
    return Parse(line, scheduler_pb2.StatusReply())


async def test_one_line_is_the_schedulers_status(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    process = await feed(world.write_job())
    out, said = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, said) == (0, b"")
    status = read(out)
    assert status.phase == "Starting"
    assert status.steps_total == world.job.spec.steps


async def test_lines_come_until_the_job_has_ended(make_world: Any) -> None:
    world = await make_world()
    scheduler = await world.start()
    process = await feed(world.write_job(), "0.05")
    assert process.stdout is not None
    assert read(await asyncio.wait_for(process.stdout.readline(), 30)).steps_done == 0
    trainer, replica = await world.trainer(), await world.replica()
    work = [world.run(trainer.run()), world.run(replica.run())]
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    last = read(out.splitlines()[-1])
    assert process.returncode == 0
    assert (last.phase, last.steps_done) == ("Complete", last.steps_total)
    assert {found.name for line in out.splitlines() for found in read(line).replicas} == {"rollout-0"}
    await world.finish(scheduler, *work)


async def test_it_ends_when_nobody_reads_any_more(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    reading, writing = await asyncio.to_thread(_pipe)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drumroll.status_feed", "0.05", env=world.write_job(), stdout=writing
    )
    writing.close()
    assert await asyncio.to_thread(reading.readline)
    reading.close()
    assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_it_ends_by_itself_when_nobody_says_so(make_world: Any) -> None:
    world = await make_world()
    await world.start()
    out = io.StringIO()
    await asyncio.wait_for(status_feed.feed(world.job, 0.05, out, most_s=0.3), 30)
    assert 1 <= len(out.getvalue().splitlines()) <= 7


async def test_the_module_says_why_it_cannot(
    make_world: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = await make_world()
    await world.start()
    monkeypatch.delenv("DRUMROLL_JOB", raising=False)
    assert await asyncio.to_thread(status_feed.main, []) == 1
    assert "is not set" in capsys.readouterr().err
    for name, value in world.write_job().items():
        monkeypatch.setenv(name, value)
    assert await asyncio.to_thread(status_feed.main, ["soon"]) == 1
    assert "soon" in capsys.readouterr().err
    assert await asyncio.to_thread(status_feed.main, []) == 0
    assert read(capsys.readouterr().out.encode()).phase == "Starting"


async def test_a_scheduler_that_is_not_there_is_said(make_world: Any) -> None:
    world = await make_world()
    process = await feed(world.write_job(world.job_at(free_port())), "soon")
    _, said = await process.communicate()
    assert process.returncode == 1
    assert b"soon" in said


def _pipe() -> tuple[Any, Any]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
