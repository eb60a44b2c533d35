"""Two schedulers at once: the newer one is the scheduler, the older one exits 75."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from drumroll_planner import records as r
from drumroll_proto.v1 import scheduler_pb2 as pb

from drumroll.embedded import free_port
from drumroll.errors import EXIT_FENCED, Fenced, SchedulerUnavailable
from drumroll.testing import eventually


async def process_of(world: Any, port: int) -> "asyncio.subprocess.Process":
    """A scheduler in a process of its own, that answers."""
    environment = world.write_job(world.job_at(port))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drumroll_scheduler", env=environment, stderr=asyncio.subprocess.PIPE
    )
    viewer = await world.client("viewer", port=port)
    await viewer.status(pb.StatusRequest(), deadline_s=60)
    return process


async def ended(process: "asyncio.subprocess.Process") -> tuple[int | None, str]:
    _, log = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, log.decode()


async def test_an_idle_scheduler_that_was_replaced_is_fenced(make_world: Any) -> None:
    world = await make_world()
    old = await world.start()
    await world.start(job=world.job_at(free_port()))
    with pytest.raises(Fenced):
        await asyncio.wait_for(old.task, 10)


async def test_a_client_that_has_seen_the_successor_refuses_the_old_scheduler(make_world: Any) -> None:
    world = await make_world()
    old = await world.start()
    viewer = await world.client("viewer")
    newer = (await viewer.status(pb.StatusRequest())).header.incarnation + 1
    assert old.app.core is not None
    request = pb.StatusRequest()
    viewer._incarnation = newer
    with pytest.raises(SchedulerUnavailable, match="has replaced this scheduler"):
        await viewer.status(request, deadline_s=1.0)


async def test_a_stopped_scheduler_that_wakes_up_beside_its_successor_exits_75(make_world: Any) -> None:
    world = await make_world(spec={"steps": 6, "scheduler": {"heartbeatSeconds": 0.1, "leaseSeconds": 5.0}})
    port = free_port()
    old = await process_of(world, port)
    switch = await world.switch(port)
    replica, trainer = await world.replica(port=switch.port), await world.trainer(port=switch.port)
    work = [world.run(replica.run()), world.run(trainer.run())]
    await eventually(lambda: len(trainer.trained) >= 2, 30.0, "two steps")
    old.send_signal(signal.SIGSTOP)
    successor = await world.start()
    switch.target = successor.app.port
    switch.cut()
    await eventually(lambda: len(trainer.trained) >= 4, 30.0, "two more steps")
    old.send_signal(signal.SIGCONT)
    code, log = await ended(old)
    assert code == EXIT_FENCED
    assert "replaced" in log
    assert await world.finish(successor, *work) == 0
    steps = [record.step for record in world.records() if isinstance(record, r.Decided)]
    assert steps == [0, 1, 2, 3, 4, 5]


async def test_a_killed_scheduler_is_gone_on_with_and_its_tokens_are_in_no_log(make_world: Any) -> None:
    world = await make_world(spec={"steps": 6})
    port = free_port()
    old = await process_of(world, port)
    switch = await world.switch(port)
    replica, trainer = await world.replica(port=switch.port), await world.trainer(port=switch.port)
    work = [world.run(replica.run()), world.run(trainer.run())]
    await eventually(lambda: len(trainer.trained) >= 2, 30.0, "two steps")
    old.kill()
    _, log = await ended(old)
    successor = await world.start()
    switch.target = successor.app.port
    assert await world.finish(successor, *work) == 0
    assert sorted({decided.step for decided in trainer.trained}) == [0, 1, 2, 3, 4, 5]
    assert [row["step"] for row in world.metrics()] == [0, 1, 2, 3, 4, 5]
    assert not [token for token in tokens_of(world) if token in log]


def tokens_of(world: Any) -> list[str]:
    return [Path(path).read_text() for path in world.job.secrets.token_files.values()]
