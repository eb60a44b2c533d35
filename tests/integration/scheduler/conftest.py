"""A real store and real gRPC on loopback; schedulers run in this process, so that a test can look inside."""

import asyncio
import gc
import json
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from drumroll_planner import records as r
from drumroll_planner.audit import CheckpointFacts, audit
from drumroll_planner.codec import from_proto
from drumroll_proto.v1 import journal_pb2
from drumroll_scheduler.app import App, Settings
from drumroll_scheduler.opening import Accept
from drumroll_scheduler.rules import rules_of
from drumroll_scheduler.scripted_job import UID, scripted_job
from drumroll_scheduler.scripted_replica import Script, ScriptedReplica, varied
from drumroll_scheduler.scripted_trainer import ScriptedTrainer, newest_checkpoint

from drumroll.embedded import EmbeddedStore, free_port
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.segments import read_segments
from drumroll.stream import SampleStream

QUICK = Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=0.8, bind_s=10.0)


@pytest.fixture(autouse=True)
def _connections_of_the_killed() -> Iterator[None]:
    """Collect what parts that were killed in this process left half open: a real kill leaves that to the kernel."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass
class Running:
    """A scheduler in a task of this process."""

    app: App
    task: "asyncio.Task[int]"

    async def kill(self) -> None:
        """End it without any farewell, as far as that is possible in a process that lives on."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Switch:
    """A TCP proxy whose target can change, and which can lose replies: the server got the call, nobody hears of it."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.lose_every = 0
        """Cut the connection at every so-manieth piece that the server sends; 0: never."""
        self.lost = 0
        self._pieces = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "Switch":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Close all connections."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        both = {writer, upstream}
        self._writers |= both
        await asyncio.gather(self._pump(reader, upstream, False), self._pump(upstream_reader, writer, True))
        self._writers -= both

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if replies and self._loses():
                    self.lost += 1
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def _loses(self) -> bool:
        self._pieces += 1
        return bool(self.lose_every) and self._pieces % self.lose_every == 0


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

    async def switch(self, target: int | None = None) -> Switch:
        """A proxy in front of the scheduler."""
        own = int(self.job.endpoints.scheduler.rpartition(":")[2])
        return await self.stack.enter_async_context(Switch(target or own))

    def job_at(self, port: int) -> ResolvedJob:
        """The job with another address of the scheduler."""
        endpoints = self.job.endpoints.model_copy(update={"scheduler": f"127.0.0.1:{port}"})
        return self.job.model_copy(update={"endpoints": endpoints})

    def write_job(self, job: ResolvedJob | None = None) -> dict[str, str]:
        """Write job.json; the environment of a scheduler's own process."""
        chosen = job or self.job
        path = self.directory / f"job-{chosen.endpoints.scheduler.rpartition(':')[2]}.json"
        path.write_text(chosen.to_json())
        return {**os.environ, "DRUMROLL_JOB": str(path), "DRUMROLL_ROLE": "scheduler", "OMP_NUM_THREADS": "1"}

    def records(self) -> list[r.Record]:
        """All archived records, in order."""
        entries = read_segments(self.job.layout.journal_dir)
        return [
            from_proto(message) for _, data in entries for message in journal_pb2.JournalEntry.FromString(data).records
        ]

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

    async def finish(
        self, scheduler: Running, *work: "asyncio.Task[Any]", within_s: float = 60.0, audited: bool = True
    ) -> int:
        """The scheduler's exit code, once it and all clients are done; a client's failure is the test's."""
        tasks = [scheduler.task, *work]
        done, pending = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        assert not pending, f"not within {within_s} s: {[task.get_coro() for task in pending]}"
        code = scheduler.task.result()
        if code == 0 and audited:
            self.check_audit()
        return code

    def check_audit(self) -> None:
        """The archive and the newest checkpoint prove that every ticket came to its right end."""
        held = newest_checkpoint(self.job.layout.checkpoints_dir)
        opened = [record for record in self.records() if isinstance(record, r.JobOpened)]
        rules = rules_of(self.job, opened[-1].num_prompts)
        report = audit(self.records(), rules=rules, checkpoint=CheckpointFacts(held.step, held.version, held.lineage))
        assert report.ok, (report.summary(), report.findings[:20])

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

        async def make(
            spec: Mapping[str, Any] | None = None, num_prompts: int = 16, num_eval_prompts: int = 0, **store: Any
        ) -> World:
            embedded = EmbeddedStore(tmp_path, UID, **store)
            await stack.enter_async_context(embedded)
            job = scripted_job(
                tmp_path,
                store_url=embedded.url,
                store_passwords=embedded.password_files,
                port=free_port(),
                num_prompts=num_prompts,
                num_eval_prompts=num_eval_prompts,
                spec=spec,
            )
            world = World(embedded, tmp_path, job, stack)
            stack.push_async_callback(world.close)
            return world

        yield make
