"""Trainers on tiny models: in this process, and as processes of their own on a real store and real gRPC."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from drumroll_planner import records as r
from drumroll_proto.v1 import scheduler_pb2_grpc
from drumroll_trainer.fake_samples import FakePlan, FakeShape, make_plan
from drumroll_trainer.fake_scheduler import FakeScheduler
from drumroll_trainer.learner.crew import Crew
from drumroll_trainer.learner.fsdp import World as Ranks
from drumroll_trainer.learner.learner import Learner
from drumroll_trainer.learner.tiny_model import make_tiny_model
from drumroll_trainer.rehearsal import DATASET, make_job

from drumroll.data.prepared import PreparedRow, write_info, write_rows
from drumroll.embedded import EmbeddedStore, free_port
from drumroll.errors import DrumrollError
from drumroll.job import ResolvedJob
from drumroll.rpc_status import to_status
from drumroll.samples import EntryKind, SampleId
from drumroll.stream import SampleStream

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with untied embeddings."""
    return make_tiny_model(tmp_path_factory.mktemp("llama") / "model", seed=1, hidden=32, heads=2)


@pytest.fixture
def crew_of() -> Callable[[ResolvedJob], Crew]:
    """A new process's learner, so to speak: it knows nothing but the job."""

    def make(job: ResolvedJob) -> Crew:
        return Crew(Learner(job, Ranks(0, 1, torch.device("cpu"))), job)

    return make


class _Service(scheduler_pb2_grpc.SchedulerServicer):
    """The fake scheduler behind real gRPC."""

    def __init__(self, scheduler: FakeScheduler) -> None:
        self.scheduler = scheduler

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return await self._answer(self.scheduler.register, request, context)

    async def NextStep(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(self.scheduler.next_step, request, context)

    async def Commit(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(self.scheduler.commit, request, context)

    async def Announce(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(self.scheduler.announce, request, context)

    async def _answer(self, call: Callable[[Any], Any], request: Any, context: Any) -> Any:
        try:
            return await call(request)
        except DrumrollError as error:
            await context.abort(*to_status(error))


@dataclass
class World:
    """A job whose trainer runs as processes."""

    job: ResolvedJob
    scheduler: FakeScheduler
    plan: FakePlan
    directory: Path
    started: "list[asyncio.subprocess.Process]"

    async def start(self, num_ranks: int, **environment: str) -> "list[asyncio.subprocess.Process]":
        """One process per rank, as the runner starts them."""
        job_file = self.directory / "job.json"
        job_file.write_text(self.job.to_json())
        port = str(free_port())
        ranks = []
        for rank in range(num_ranks):
            variables = os.environ | {
                "DRUMROLL_JOB": str(job_file),
                "DRUMROLL_ROLE": "trainer",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
                **environment,
            }
            with (self.directory / f"rank-{rank}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "drumroll_trainer", env=variables, stdout=log, stderr=log
                )
            ranks.append(process)
            self.started.append(process)
        return ranks

    async def run(self, num_ranks: int) -> list[int]:
        """Start, wait, exit codes."""
        return [await process.wait() for process in await self.start(num_ranks)]

    @property
    def log(self) -> str:
        """What rank 0 has logged."""
        return (self.directory / "rank-0.log").read_text()


MakeWorld = Callable[..., Any]


@pytest.fixture
async def make_world(tmp_path: Path, llama_dir: Path) -> AsyncIterator[MakeWorld]:
    """Makes a world of its own for each call, all on one store's server."""
    async with AsyncExitStack() as stack:
        started: list[asyncio.subprocess.Process] = []

        async def make(name: str, **job: Any) -> World:
            directory = tmp_path / name
            store = await stack.enter_async_context(EmbeddedStore(directory, name))
            plan = make_plan(FakeShape(num_steps=4, prompts_per_step=3, group_size=3))
            steps = await _fill(store, name, plan)
            scheduler = FakeScheduler(steps, checkpoint_every=2)
            port = await _serve(stack, scheduler)
            made = _job(directory, name, llama_dir, store, port, job)
            return World(made, scheduler, plan, directory, started)

        yield make
        for process in started:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()


async def _fill(store: EmbeddedStore, uid: str, plan: FakePlan) -> list[tuple[r.DecidedTicket, ...]]:
    """Put the plan's samples into the stream; the same plan with the ids that the server gave."""
    stream = SampleStream(store.connect("rollout"), uid)
    steps = []
    for tickets in plan.steps:
        filled = []
        for ticket in tickets:
            samples = []
            for sample in ticket.samples:
                sample_id = SampleId(ticket.ticket.epoch, ticket.ticket.ordinal, sample.index, sample.attempt)
                payload = plan.entries[sample.entry_id]
                ref = await stream.add(sample=sample_id, lease_id="lease", kind=EntryKind.SAMPLE, payload=payload)
                samples.append(replace(sample, entry_id=ref.entry_id))
            filled.append(replace(ticket, samples=tuple(samples)))
        steps.append(tuple(filled))
    return steps


async def _serve(stack: AsyncExitStack, scheduler: FakeScheduler) -> int:
    server = grpc.aio.server()
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(_Service(scheduler), server)  # type: ignore[abstract]  # only the trainer's calls
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stack.push_async_callback(server.stop, None)
    return int(port)


def _job(
    directory: Path, uid: str, model: Path, store: EmbeddedStore, port: int, settings: Mapping[str, Any]
) -> ResolvedJob:
    values: dict[str, Any] = {"checkpoint_every": 2, "algorithm": {"learningRate": 1e-3}, **settings}
    job = make_job(directory / "job", model, uid=uid, **values)
    data_dir = Path(job.layout.data_dir)
    rows = [PreparedRow(row + 1, [3 + row % 9, 5, 7], "text", {"prompt": "p", "columns": {}}) for row in range(64)]
    write_rows(rows, data_dir / "train.arrow")
    write_info(DATASET, data_dir)
    token = directory / "trainer.token"
    token.write_text("secret")
    found = job.model_dump(by_alias=True)
    found["endpoints"] = {"scheduler": f"127.0.0.1:{port}", "store": store.url}
    found["secrets"] = {
        "tokenFiles": {"trainer": str(token)},
        "storePasswordFiles": {"trainer": str(store.password_files["trainer"])},
    }
    return ResolvedJob.model_validate(found)
