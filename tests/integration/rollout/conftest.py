"""A real Valkey, real weight versions on disk, a scripted scheduler on real gRPC, and replicas in this process."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_planner.records import LeaseKind
from drumroll_proto.v1 import common_pb2
from drumroll_rollout.engine import Engine
from drumroll_rollout.fake_scheduler import FakeScheduler
from drumroll_rollout.fake_scorer import LengthScorer
from drumroll_rollout.replay_engine import ReplayEngine
from drumroll_rollout.replay_lengths import ReplayLengths, ReplayTokens
from drumroll_rollout.worker import Parts, Worker
from safetensors.numpy import save_file

from drumroll.api.spec import RLJobSpec, Rollout
from drumroll.clock import SystemClock
from drumroll.entries import EntryRef
from drumroll.errors import StoreUnavailable
from drumroll.job import Endpoints, Layout, ResolvedJob, Secrets
from drumroll.rpc import SchedulerClient
from drumroll.samples import EntryKind, Limits, SamplePayload
from drumroll.store import command, connect, retrying
from drumroll.stream import SampleStream
from drumroll.valkey import ServerSettings, prepare
from drumroll.weights import WeightStore
from drumroll.weights_manifest import LogitProbe

UID = "rollout-tests"
EOS = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class StoreProcess:
    """The embedded store of the job; it can be killed and started again."""

    settings: ServerSettings
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(prepare(self.settings), stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def store_process(tmp_path: Path) -> Iterator[StoreProcess]:
    files = {}
    for role in ("scheduler", "rollout"):
        files[role] = tmp_path / f"{role}.password"
        files[role].write_text(f"secret-of-{role}")
    server = StoreProcess(ServerSettings(free_port(), tmp_path / "store", UID, 64 << 20, files))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def job(tmp_path: Path, store_process: StoreProcess) -> ResolvedJob:
    token = tmp_path / "rollout.token"
    token.write_text("token-of-rollout")
    spec = RLJobSpec.model_validate(
        {
            "model": {"path": "model"},
            "data": {
                "train": {"path": "train.jsonl"},
                "eval": {"path": "eval.jsonl", "temperature": 0.5},
                "maxPromptTokens": 64,
                "maxResponseTokens": 4000,
            },
            "reward": {"type": "exact"},
            "scheduler": {"heartbeatSeconds": 0.05},
            "rollout": {"maxConcurrentSamples": 8, "graceSeconds": 2, "engine": {"type": "replay"}},
        }
    )
    passwords = {role: str(path) for role, path in store_process.settings.password_files.items()}
    return ResolvedJob(
        uid=UID,
        name="tests",
        namespace="default",
        spec=spec,
        layout=Layout(
            job_dir=str(tmp_path / "job"), data_dir=str(tmp_path), model_dir=str(tmp_path), source_dir=str(tmp_path)
        ),
        endpoints=Endpoints(scheduler="127.0.0.1:1", store=f"redis://127.0.0.1:{store_process.settings.port}"),
        secrets=Secrets(token_files={"rollout": str(token)}, store_password_files=passwords),
    )


@dataclass
class Versions:
    """Published weight versions of the job."""

    store: WeightStore
    sums: dict[int, str] = field(default_factory=dict)

    def publish(self, version: int, *, lineage: int = 0) -> str:
        """The manifest's sum."""
        staging = self.store.stage(version)
        save_file({"w": np.full(8, version, np.float32)}, staging / "model.safetensors")
        (staging / "config.json").write_text("{}")
        probe = LogitProbe((1, 2, 3), (-0.5, -1.0), 0.01)
        self.sums[version] = self.store.publish(
            staging, version=version, step=version, lineage=lineage, probe=probe
        ).manifest_sha256
        return self.sums[version]


@pytest.fixture
def versions(job: ResolvedJob) -> Versions:
    return Versions(WeightStore(job.layout.weights_dir, UID))


@pytest.fixture
async def scheduler(versions: Versions) -> AsyncIterator[FakeScheduler]:
    """With version 0 published and announced."""
    async with FakeScheduler() as fake:
        fake.announce(0, versions.publish(0))
        yield fake


@pytest.fixture
async def stream(job: ResolvedJob, store_process: StoreProcess) -> AsyncIterator[SampleStream]:
    """The stream with the scheduler's rights, for what tests look at; the store answers."""
    client = connect(job, "scheduler")

    async def ping() -> None:
        await command(client, "PING")

    await retrying(ping, deadline_s=20.0)
    yield SampleStream(client, UID)
    await client.aclose()


class NumberedPrompts:
    """Row r is the prompt [10, 11, r]."""

    def __len__(self) -> int:
        return 1000

    def prompt_ids(self, row: int) -> list[int]:
        return [10, 11, row]

    def reward_inputs(self, row: int) -> dict[str, Any]:
        return {"prompt": row, "answer": None}


@dataclass
class Replica:
    """A worker and what a test wants to reach of it."""

    worker: Worker
    engine: Engine
    scorer: LengthScorer
    task: asyncio.Task[None]

    async def finish(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait_for(self.task, 20.0)


StartReplica = Callable[..., Replica]


@pytest.fixture
async def start_replica(
    job: ResolvedJob, scheduler: FakeScheduler, versions: Versions, stream: SampleStream
) -> AsyncIterator[Callable[..., Any]]:
    """Start a replica: `await start_replica("rollout-0", tokens=30, step_seconds=0.0005, wrap=...)`."""
    replicas: list[Replica] = []
    closing: list[Callable[[], Any]] = []

    async def start(
        name: str = "rollout-0",
        *,
        tokens: int | ReplayLengths = 30,
        step_seconds: float = 0.0005,
        vocabulary: Sequence[int] = range(20, 100),
        wrap: Callable[[Engine], Engine] = lambda engine: engine,
        decode: Callable[[Sequence[int]], str] = lambda ids: " ".join(map(str, ids)),
        rollout: Rollout | None = None,
    ) -> Replica:
        lengths = ReplayLengths(0, given=(tokens,)) if isinstance(tokens, int) else tokens
        settings = job.spec.rollout.engine.replay.model_copy(
            update={"step_seconds": step_seconds, "step_seconds_per_sequence": 0.0, "load_seconds": 0.0}
        )
        engine = wrap(ReplayEngine(settings, lengths=lengths, tokens=ReplayTokens(0, vocabulary), slots=8))
        await engine.start()
        client = SchedulerClient(job, "rollout", address=scheduler.address, attempt_s=2.0)
        store = connect(job, "rollout")
        scorer = LengthScorer()
        parts = Parts(
            spec=job.spec.model_copy(update={"rollout": rollout or job.spec.rollout}),
            replica=common_pb2.ReplicaId(name=name, instance=f"instance-of-{name}"),
            engine=engine,
            scheduler=client,
            store=SampleStream(store, UID),
            versions=WeightStore(job.layout.weights_dir, UID),
            prompts={LeaseKind.TRAIN: NumberedPrompts(), LeaseKind.EVAL: NumberedPrompts()},
            eos_token_ids=(EOS,),
            tokenizer_digest="d" * 64,
            limits=Limits.of(job),
            scorer=scorer,
            decode_text=decode,
            clock=SystemClock(),
        )
        worker = Worker(parts)
        replica = Replica(worker, engine, scorer, asyncio.create_task(worker.run(), name=name))
        replicas.append(replica)
        closing.extend((engine.close, client.close, store.aclose))
        return replica

    yield start
    for replica in replicas:
        replica.task.cancel()
    await asyncio.gather(*(replica.task for replica in replicas), return_exceptions=True)
    for close in closing:
        await close()


@dataclass
class Reader:
    """Reads what was reported or handed back."""

    stream: SampleStream
    limits: Limits

    async def sample(self, ref: common_pb2.EntryRef) -> SamplePayload:
        return await self._read(EntryRef.from_proto(ref), EntryKind.SAMPLE)

    async def partial(self, ref: Any) -> SamplePayload:
        return await self._read(EntryRef(ref.entry_id, ref.sha256, ref.num_bytes), EntryKind.PARTIAL)

    async def _read(self, ref: EntryRef, kind: EntryKind) -> SamplePayload:
        (entry,) = await self.stream.read([ref], kind=kind)
        return entry.decode(self.limits)


@pytest.fixture
def reader(job: ResolvedJob, stream: SampleStream) -> Reader:
    return Reader(stream, Limits.of(job))


@pytest.fixture
def store_is_up(job: ResolvedJob) -> Callable[[], Any]:
    """Whether the store answers."""

    async def up() -> bool:
        client = connect(job, "scheduler", timeout_s=1.0)
        try:
            return bool(await command(client, "PING"))
        except StoreUnavailable:
            return False
        finally:
            await client.aclose()

    return up
