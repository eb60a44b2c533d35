"""Replicas as processes, with the real scheduler and real reward processes, over a whole job."""

import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drumroll_proto.v1 import journal_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler.app import App, Settings
from drumroll_scheduler.scripted_job import UID, scripted_job
from drumroll_scheduler.scripted_trainer import ScriptedTrainer
from safetensors.numpy import save_file

from drumroll import environment
from drumroll.embedded import EmbeddedStore, free_port
from drumroll.errors import EXIT_FENCED
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.stream import SampleStream
from drumroll.testing import eventually
from drumroll.weights import WeightStore
from drumroll.weights_manifest import LogitProbe

REWARD = """
def by_length(completions, **columns):
    return [float(len(completion)) for completion in completions]

def broken(completions, **columns):
    return [1.0] * (len(completions) + 1)
"""


WriteWeights = Callable[[Path, int], LogitProbe]
"""Fills a directory with a version's files; the probe that an engine must reproduce."""


def senseless_weights(staging: Path, version: int) -> LogitProbe:
    save_file({"w": np.full(4, version, np.float32)}, staging / "model.safetensors")
    (staging / "config.json").write_text("{}")
    return LogitProbe((1, 2, 3), (-0.5, -1.0), 0.01)


class PublishingTrainer(ScriptedTrainer):
    """Writes weights before it announces them."""

    def __init__(
        self, job: ResolvedJob, client: SchedulerClient, stream: SampleStream, write: WriteWeights = senseless_weights
    ) -> None:
        super().__init__(client, stream, Path(job.layout.checkpoints_dir), wait_ms=200)
        self._weights = WeightStore(job.layout.weights_dir, job.uid)
        self._scheduler = client
        self._write = write

    async def _announce(self) -> None:
        held = self.held
        staging = self._weights.stage(held.version)
        probe = self._write(staging, held.version)
        published = self._weights.publish(
            staging, version=held.version, step=held.step, lineage=held.lineage, probe=probe
        )
        weights = journal_pb2.Announced(
            version=held.version,
            step=held.step,
            lineage=held.lineage,
            manifest_sha256=published.manifest_sha256,
            weights_digest=published.weights_digest,
        )
        await self._scheduler.announce(pb.AnnounceRequest(trainer_epoch=self.epoch, weights=weights))


def write_model(directory: Path) -> None:
    """A tokenizer of one token per character, and nothing else that a replay needs."""
    from tokenizers import Tokenizer, decoders, models

    directory.mkdir()
    words = {"<eos>": 0} | {chr(33 + number): number + 1 for number in range(60)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"vocab_size": 61}))


@dataclass
class Site:
    """A job's files, store and processes."""

    job: ResolvedJob
    directory: Path
    store: EmbeddedStore
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, name: str) -> asyncio.subprocess.Process:
        variables = environment.copy() | {
            "DRUMROLL_JOB": str(self.directory / "job.json"),
            "DRUMROLL_ROLE": "rollout",
            "DRUMROLL_REPLICA": name,
            "OMP_NUM_THREADS": "1",
        }
        with self.log(name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "drumroll_rollout", env=variables, stdout=log, stderr=log
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def last_line(self, name: str) -> str:
        return self.log(name).read_text().splitlines()[-1]


@pytest.fixture
async def make_site(tmp_path: Path) -> AsyncIterator[Any]:
    sites: list[Site] = []

    async def make(function: str, **spec: Any) -> Site:
        store = EmbeddedStore(tmp_path, UID)
        await store.start()
        (tmp_path / "my_rewards.py").write_text(REWARD)
        if not (tmp_path / "model").exists():
            write_model(tmp_path / "model")
        job = scripted_job(
            tmp_path,
            store_url=store.url,
            store_passwords=store.password_files,
            port=free_port(),
            num_prompts=64,
            spec={"reward": {"type": "function", "function": f"my_rewards:{function}"}, **spec},
        )
        (tmp_path / "job.json").write_text(job.to_json())
        site = Site(job, tmp_path, store)
        sites.append(site)
        return site

    yield make
    for site in sites:
        for process in site.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
        await site.store.__aexit__(None, None, None)


def rollout(**replay: float) -> dict[str, Any]:
    values = {"medianTokens": 30, "sigma": 0.3, "stepSeconds": 0.02, "stepSecondsPerSequence": 0.0} | replay
    return {"maxConcurrentSamples": 8, "graceSeconds": 3, "engine": {"type": "replay", "replay": values}}


async def test_a_job_ends_well_though_one_replica_is_terminated_and_one_is_killed(make_site: Any) -> None:
    """SIGTERM loses no token: the last line of the log says so. A replica that is killed is replaced."""
    site = await make_site("by_length", rollout=rollout(), steps=12, maxPolicyLag=2)
    app = App(site.job, settings=Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=1.0, bind_s=10.0))
    scheduler = asyncio.create_task(app.run())
    await app.serving.wait()
    async with SchedulerClient(site.job, "trainer") as client:
        trainer = PublishingTrainer(site.job, client, SampleStream(site.store.connect("trainer"), UID))
        training = asyncio.create_task(trainer.run())
        try:
            for number in range(3):
                await site.start(f"rollout-{number}")
            await eventually(lambda: len(trainer.trained) >= 2, deadline_s=60.0)
            # Each of them is at work.
            assert app.core is not None
            replicas = app.core.policy.state.replicas
            await eventually(
                lambda: all(name in replicas and replicas[name].leases for name in ("rollout-0", "rollout-1")),
                deadline_s=60.0,
            )
            site.processes["rollout-0"].send_signal(signal.SIGTERM)
            site.processes["rollout-1"].send_signal(signal.SIGKILL)
            await asyncio.wait_for(training, 90.0)
            codes = {name: await asyncio.wait_for(p.wait(), 20.0) for name, p in site.processes.items()}
            assert await asyncio.wait_for(scheduler, 20.0) == 0
        finally:
            for task in (training, scheduler):
                task.cancel()
            await asyncio.gather(training, scheduler, return_exceptions=True)
    assert [decided.step for decided in trainer.trained] == list(range(12))
    assert codes == {"rollout-0": 0, "rollout-1": -signal.SIGKILL, "rollout-2": 0}
    for name in ("rollout-0", "rollout-2"):
        assert "tokens_lost=0" in site.last_line(name).split(), site.last_line(name)
    assert re.search(r"samples_total=[1-9]", site.last_line("rollout-2"))
    assert "Traceback" not in site.log("rollout-0").read_text() + site.log("rollout-2").read_text()


async def test_a_replica_that_wakes_up_beside_its_successor_ends_at_once(make_site: Any) -> None:
    """SIGSTOP, a successor of the same name, SIGCONT: two instances never fight for one name."""
    site = await make_site("by_length", rollout=rollout(), steps=2000)
    app = App(site.job, settings=Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=0.3, bind_s=10.0))
    scheduler = asyncio.create_task(app.run())
    await app.serving.wait()
    first = await site.start("rollout-0")
    registered = "registered as rollout-0"
    await eventually(lambda: site.log("rollout-0").read_text().count(registered) == 1, deadline_s=60.0)
    first.send_signal(signal.SIGSTOP)
    second = await site.start("rollout-0")
    await eventually(lambda: site.log("rollout-0").read_text().count(registered) == 2, deadline_s=60.0)
    first.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(first.wait(), 60.0) == EXIT_FENCED
    assert second.returncode is None
    second.terminate()
    assert await asyncio.wait_for(second.wait(), 30.0) == 0
    scheduler.cancel()
    await asyncio.gather(scheduler, return_exceptions=True)


async def test_a_broken_reward_contract_ends_the_process_as_a_users_mistake(make_site: Any) -> None:
    """R6."""
    site = await make_site("broken", rollout=rollout(stepSeconds=0.001))
    app = App(site.job, settings=Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=0.3, bind_s=10.0))
    scheduler = asyncio.create_task(app.run())
    await app.serving.wait()
    async with SchedulerClient(site.job, "trainer") as client:
        trainer = PublishingTrainer(site.job, client, SampleStream(site.store.connect("trainer"), UID))
        training = asyncio.create_task(trainer.run())
        process = await site.start("rollout-0")
        assert await asyncio.wait_for(process.wait(), 60.0) == 2
        for task in (training, scheduler):
            task.cancel()
        await asyncio.gather(training, scheduler, return_exceptions=True)
    text = site.log("rollout-0").read_text()
    assert "my_rewards:broken" in text
    assert "Traceback" not in text


async def test_a_missing_job_file_is_a_users_mistake(tmp_path: Path) -> None:
    variables = environment.copy() | {"DRUMROLL_JOB": str(tmp_path / "job.json"), "DRUMROLL_ROLE": "rollout"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drumroll_rollout", env=variables, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60.0)
    assert process.returncode == 2
    assert b"is not a resolved job" in errors
    assert b"Traceback" not in errors


def tiny_weights(model_dir: Path) -> WriteWeights:
    """Another tiny model for each version, with its true log-probabilities as the probe."""

    def write(staging: Path, version: int) -> LogitProbe:
        import torch
        from drumroll_trainer.learner.tiny_model import make_tiny_model
        from transformers import AutoModelForCausalLM

        from drumroll.model_files import copy_companions

        source = make_tiny_model(staging.with_name(f"tiny-{version}"), seed=version)
        shutil.copy(source / "model.safetensors", staging)
        copy_companions(model_dir, staging, dtype="float32")
        ids = [1, *range(40, 60)]
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], dim=-1)
        expected = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()
        return LogitProbe(tuple(ids), tuple(expected), 0.001)

    return write


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("vllm")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
async def test_a_job_with_a_real_engine_updates_in_flight_and_drains(make_site: Any, tmp_path: Path) -> None:
    """Each version has other weights: a probe that passes proves that they were loaded."""
    from drumroll_trainer.learner.tiny_model import make_tiny_model

    make_tiny_model(tmp_path / "model", seed=0)
    site = await make_site(
        "by_length",
        model={"path": "model", "dtype": "float32"},
        data={"maxResponseTokens": 48},
        rollout={
            "maxConcurrentSamples": 8,
            "graceSeconds": 5,
            "threads": 1,
            "engine": {"kvCacheMemory": "64Mi", "enforceEager": True},
        },
        steps=6,
        maxPolicyLag=2,
    )
    app = App(site.job, settings=Settings(tick_s=0.02, housekeeping_s=0.1, linger_s=2.0, bind_s=10.0))
    scheduler = asyncio.create_task(app.run())
    await app.serving.wait()
    async with SchedulerClient(site.job, "trainer") as client:
        stream = SampleStream(site.store.connect("trainer"), UID)
        trainer = PublishingTrainer(site.job, client, stream, tiny_weights(tmp_path / "model"))
        training = asyncio.create_task(trainer.run())
        try:
            process = await site.start("rollout-0")
            await asyncio.wait_for(training, 400.0)
            assert await asyncio.wait_for(process.wait(), 30.0) == 0
            assert await asyncio.wait_for(scheduler, 30.0) == 0
        finally:
            for task in (training, scheduler):
                task.cancel()
            await asyncio.gather(training, scheduler, return_exceptions=True)
    text = site.log("rollout-0").read_text()
    assert [decided.step for decided in trainer.trained] == list(range(6))
    assert text.count("loaded, probed and attested") >= 3
    assert "tokens_lost=0" in site.last_line("rollout-0").split()
    assert "Traceback" not in text
