"""A real store and real gRPC on loopback; schedulers run in this process, so that a test can look inside."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from drumroll_scheduler.app import App, Settings
from drumroll_scheduler.opening import Accept
from drumroll_scheduler.scripted_job import UID, scripted_job
from drumroll_scheduler.scripted_replica import Script, ScriptedReplica, varied
from drumroll_scheduler.scripted_trainer import ScriptedTrainer

from drumroll.embedded import EmbeddedStore, free_port
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.stream import SampleStream

QUICK = Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=0.3, bind_s=10.0)


@dataclass
class Running:
    """A scheduler in a task of this process."""

    app: App
    task: "asyncio.Task[int]"

    async def kill(self) -> None:
        """End it without any farewell, as far as that is possible in a process that lives on."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@dataclass
class World:
    """One job: its store, its files, its schedulers and clients."""

    store: EmbeddedStore
    directory: Path
    job: ResolvedJob
    stack: AsyncExitStack
    schedulers: list[Running] = field(default_factory=list)
    tasks: "list[asyncio.Task[Any]]" = field(default_factory=list)

    async def start(
        self, *, settings: Settings = QUICK, accept: Accept | None = None, job: ResolvedJob | None = None
    ) -> Running:
        """A scheduler that answers calls."""
        app = App(job or self.job, settings=settings, accept=accept)
        running = Running(app, asyncio.create_task(app.run()))
        self.schedulers.append(running)
        serving = asyncio.create_task(app.serving.wait())
        await asyncio.wait([serving, running.task], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        serving.cancel()
        if running.task.done():
            running.task.result()
        return running

    async def client(self, role: str, *, port: int | None = None, attempt_s: float = 2.0) -> SchedulerClient:
        """A client, closed with the world."""
        address = f"127.0.0.1:{port}" if port else None
        client = SchedulerClient(self.job, role, address=address, attempt_s=attempt_s)
        self.stack.push_async_callback(client.close)
        return client

    def stream(self, role: str) -> SampleStream:
        return SampleStream(self.store.connect(role), UID)

    async def replica(
        self, *, name: str = "rollout-0", slots: int = 8, script: Script = varied, port: int | None = None
    ) -> ScriptedReplica:
        client = await self.client("rollout", port=port)
        return ScriptedReplica(client, self.stream("rollout"), name=name, slots=slots, script=script, wait_ms=200)

    async def trainer(self, *, port: int | None = None) -> ScriptedTrainer:
        client = await self.client("trainer", port=port)
        return ScriptedTrainer(client, self.stream("trainer"), self.job.layout.checkpoints_dir, wait_ms=200)

    def run(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """A task that ends with the world."""
        task = asyncio.ensure_future(work)
        self.tasks.append(task)
        return task

    def metrics(self) -> list[dict[str, Any]]:
        path = Path(str(self.job.metrics_path))
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def timeline(self, kind: str) -> list[dict[str, Any]]:
        path = Path(str(self.job.metrics_path)).with_name("timeline.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [row for row in rows if row["kind"] == kind]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for running in self.schedulers:
            await running.kill()


MakeWorld = Callable[..., Awaitable[World]]


@pytest.fixture
async def make_world(tmp_path: Path) -> AsyncIterator[MakeWorld]:
    """`await make_world(spec={...}, num_prompts=16)`: a job with a running store and no scheduler yet."""
    async with AsyncExitStack() as stack:

        async def make(spec: Mapping[str, Any] | None = None, num_prompts: int = 16, **store: Any) -> World:
            embedded = EmbeddedStore(tmp_path, UID, **store)
            await stack.enter_async_context(embedded)
            job = scripted_job(
                tmp_path,
                store_url=embedded.url,
                store_passwords=embedded.password_files,
                port=free_port(),
                num_prompts=num_prompts,
                spec=spec,
            )
            world = World(embedded, tmp_path, job, stack)
            stack.push_async_callback(world.close)
            return world

        yield make
