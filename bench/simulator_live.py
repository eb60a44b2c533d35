"""A live run to hold the simulator against: real store, real scheduler process, real engines, a trainer that sleeps.

The same lengths, by row, are given to the engines (which make exactly so many tokens) and to the simulator.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from drumroll_planner import records as r
from drumroll_planner.cost_fit import EngineSettings, Pause, TracedRequest, fit_trace
from drumroll_planner.costs import CostModel
from drumroll_planner.plan import PassInputs
from drumroll_planner.planners import build_planner
from drumroll_planner.sim import SimJob, SimResult, simulate
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler.rules import rules_of
from drumroll_scheduler.scripted_job import UID, scripted_job
from drumroll_scheduler.scripted_trainer import ScriptedTrainer

from drumroll.embedded import EmbeddedStore, free_port
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.stream import SampleStream
from drumroll.testing import eventually

ROOT = Path(__file__).resolve().parents[1]
PROMPT_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """One live run."""

    name: str
    engine: dict[str, Any]
    replicas: int
    processes: int
    slots: int
    group: int
    per_step: int
    steps: int
    bound: int
    trainer: CostModel
    lengths: np.ndarray
    """[prompts, group], by row; the plan is the data set's order."""
    model: Path

    @property
    def spec(self) -> dict[str, Any]:
        """What the job's spec says of it."""
        return {
            "model": {"path": str(self.model), "dtype": "float32"},
            "data": {"maxPromptTokens": 160, "maxResponseTokens": 1000},
            "algorithm": {"groupSize": self.group, "promptsPerStep": self.per_step},
            "maxPolicyLag": self.bound,
            "steps": self.steps,
            "trainer": {"checkpoint": {"everySteps": 1000}},
            "scheduler": {"planner": "fifo", "heartbeatSeconds": 0.1, "leaseSeconds": 60.0},
            "rollout": {
                "replicas": self.replicas,
                "maxConcurrentSamples": self.slots,
                "threads": 1,
                "engine": {"kvCacheMemory": "64Mi", **self.engine},
            },
            "stream": {"embedded": {"maxBytes": "256Mi"}},
        }


class TimedTrainer(ScriptedTrainer):
    """Sleeps as long as the modelled trainer would train; notes when each step ends."""

    costs: CostModel
    ends: list[float]

    async def learn(self, decided: r.Decided) -> None:
        tokens = sum(s.num_tokens + PROMPT_TOKENS for ticket in decided.tickets for s in ticket.samples)
        await asyncio.sleep(self.costs.train(tokens) + self.costs.publish_s)
        self.ends.append(time.monotonic())


@dataclass(frozen=True, slots=True)
class LiveResult:
    """What was measured: seconds of the whole, seconds a step after the first bound + 2, costs of the engines."""

    makespan_s: float
    iteration_s: float
    costs: CostModel | None
    turnaround_s: float
    """From an answer's end until its place is filled again; median."""


async def live(setting: Setting, *, profile: bool) -> LiveResult:
    """Run it once."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            return await _live(setting, Path(folder), stack, profile=profile)


async def _live(setting: Setting, folder: Path, stack: AsyncExitStack, *, profile: bool) -> LiveResult:
    lengths = folder / "lengths.npy"
    np.save(lengths, setting.lengths)
    store = EmbeddedStore(folder, UID, max_bytes=256 << 20)
    job = scripted_job(
        folder,
        store_url=store.url,
        store_passwords=store.password_files,
        port=free_port(),
        num_prompts=len(setting.lengths),
        spec=setting.spec,
    )
    job = job.model_copy(update={"layout": job.layout.model_copy(update={"model_dir": str(setting.model)})})
    job_file = folder / "job.json"
    job_file.write_text(job.to_json())
    names = [f"rollout-{number:05d}" for number in range(setting.replicas)]
    shares = [names[number :: setting.processes] for number in range(setting.processes)]
    files = [folder / f"costs-{number}.json" for number in range(setting.processes)]
    waits = [folder / f"story-{number}.json" for number in range(setting.processes)]
    workers = [
        await _start(
            stack,
            [sys.executable, str(ROOT / "bench" / "simulator_replicas.py"), str(job_file), str(lengths)],
            [str(setting.model), *share, "--story", str(wait), *(["--profile", str(file)] if profile else [])],
        )
        for share, file, wait in zip(shares, files, waits, strict=True)
    ]
    for worker in workers:
        assert worker.stdout is not None
        if (await worker.stdout.readline()).strip() != b"ready":
            raise RuntimeError("a replica process did not start; its messages are above")
    await stack.enter_async_context(store)
    scheduler = [sys.executable, "-m", "drumroll_scheduler"]
    await _start(stack, scheduler, [], DRUMROLL_JOB=str(job_file), DRUMROLL_ROLE="scheduler")
    began, ends = await _train(setting, job, store, workers, stack)
    warm = setting.bound + 2
    costs = [CostModel.from_json(file.read_text()) for file in files] if profile else []
    async with asyncio.timeout(30.0):
        for worker in workers:
            await worker.wait()
    stories = [json.loads(wait.read_text()) for wait in waits]
    turnaround = float(np.mean([story["turnaround_s"] for story in stories]))
    fitted = _fitted(setting, costs, [each for story in stories for each in story["replicas"]]) if profile else None
    return LiveResult(ends[-1] - began, (ends[-1] - ends[warm - 1]) / (len(ends) - warm), fitted, turnaround)


def _fitted(setting: Setting, profiled: list[CostModel], replicas: list[dict[str, Any]]) -> CostModel:
    """Costs from the token times of this run, beginning with those of the profile: one model for all replicas.

    A profile has the machine to itself; here the engines share it with each other, their clients and the services.
    """
    start = _mean(profiled)
    models = []
    for replica in replicas:
        origin = min(request[0] for request in replica["requests"])
        requests = [
            TracedRequest(at - origin, prompt, tokens, first - origin, last - origin)
            for at, prompt, tokens, first, last in replica["requests"]
        ]
        pauses = [Pause(at - origin, seconds) for at, seconds in replica["loads"] if at > origin]
        used = np.ones(len(requests), dtype=bool)
        engine = EngineSettings(setting.slots, 2048)
        knots = tuple(batch for batch in (1, 2, 4, 8) if batch < setting.slots)
        model, error = fit_trace(requests, engine, used=used, start=start, knots=knots, pauses=pauses)
        print(
            f"  fitted to a run: latency error {error.median:.1%} median, {error.p90:.1%} p90 of {error.count} requests"
        )
        models.append(replace(model, publish_pause_s=float(np.median([pause.seconds for pause in pauses]))))
    return _mean(models)


async def _train(
    setting: Setting, job: ResolvedJob, store: EmbeddedStore, workers: list[Any], stack: AsyncExitStack
) -> tuple[float, list[float]]:
    client = SchedulerClient(job, "trainer")
    stack.push_async_callback(client.close)
    trainer = TimedTrainer(client, SampleStream(store.connect("trainer"), UID), Path(job.layout.checkpoints_dir))
    trainer.costs, trainer.ends = setting.trainer, []

    async def registered() -> bool:
        return len((await client.status(pb.StatusRequest())).replicas) == setting.replicas

    # Until the first version is announced nobody is given work: all begin together.
    await client.status(pb.StatusRequest())
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
    await eventually(registered, 60.0, "all replicas registered")
    began = time.monotonic()
    await trainer.run()
    return began, trainer.ends


async def _start(stack: AsyncExitStack, command: list[str], arguments: list[str], **variables: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    stack.push_async_callback(_end, process)
    return process


async def _end(process: Any) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(10.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _mean(costs: list[CostModel]) -> CostModel:
    """One model for replicas that were measured at the same time."""
    names = ("sequence_s", "kv_s", "prefill_s", "prefill_pair_s", "chunk_s", "publish_pause_s")
    table = tuple((batch, float(np.mean([each.base(batch) for each in costs]))) for batch, _ in costs[0].table)
    return replace(costs[0], table=table, **{n: float(np.mean([getattr(each, n) for each in costs])) for n in names})


def simulated(setting: Setting, costs: CostModel, turnaround_s: float) -> SimResult:
    """The same run in the simulator."""
    trainer = setting.trainer
    whole = replace(
        costs, train_step_s=trainer.train_step_s, train_token_s=trainer.train_token_s, publish_s=trainer.publish_s
    )
    size = len(setting.lengths)
    prompts = np.full(size, PROMPT_TOKENS, np.int32)
    inputs = PassInputs(epoch=0, num_prompts=size, seed=0, prompt_tokens=prompts, history=np.zeros(0, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        job = scripted_job(Path(folder), store_url="redis://x", store_passwords={}, port=1, spec=setting.spec)
    return simulate(
        SimJob(
            rules=rules_of(job, size),
            plan=build_planner("fifo").plan(inputs),
            lengths=setting.lengths,
            prompt_tokens=prompts,
            costs=whole,
            num_replicas=setting.replicas,
            max_concurrent=setting.slots,
            checkpoint_every=1000,
            notice_s=0.05,
            turnaround_s=turnaround_s,
        ),
        mode="policy",
    )
