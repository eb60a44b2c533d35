"""Replicas of a live run, in a process of their own: real engines, forced lengths, the scheduler's real protocol.

    python bench/simulator_replicas.py JOB_JSON LENGTHS_NPY MODEL_DIR NAME [NAME ...] [--profile FILE] --story FILE

With --profile the engine is measured first, while the other processes measure theirs, and the fit is written.
The other file gets when every request and weight load began and ended, and the median time from an answer's last token
until its report is taken and its place filled again.
Started by bench/simulator.py; prints a line once it is ready.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from drumroll_cli.simulating.profiling import Sweep, measure
from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_rollout.engine import Engine, GenerationRequest, SamplingSettings
from drumroll_rollout.engine_choice import choose_engine, vocabulary_size
from drumroll_scheduler.scripted_replica import Answer, ScriptedReplica

from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.store import connect_to
from drumroll.stream import SampleStream


class TimedClient(SchedulerClient):
    """Notes how long a call for work takes that gets some at once."""

    calls: list[float]

    async def lease(self, request: pb.LeaseRequest, **options: Any) -> pb.LeaseReply:
        began = time.perf_counter()
        reply = await super().lease(request, **options)
        # A longer call has waited for what may be leased, not for the scheduler.
        if reply.leases and time.perf_counter() - began < 0.2:
            self.calls.append(time.perf_counter() - began)
        return reply


class LiveReplica(ScriptedReplica):
    """A replica whose answers come from an engine, each as long as it is told; notes how long reports take."""

    reports: list[float]
    requests: list[tuple[float, int, int, float, float]]
    """(arrival, prompt tokens, answer tokens, first token, last token) of each, on the machine's clock."""
    loads: list[tuple[float, float]]
    """(start, seconds) of each weight load."""

    engine: Engine
    weights: Path
    vocabulary: int
    _ended_at: dict[str, float]

    async def load(self, version: int) -> None:
        began = time.time()
        await self.engine.load_weights(version, self.weights)
        self.loads.append((began, time.time() - began))

    async def generate(self, grant: pb.LeaseGrant, answer: Answer) -> None:
        request = GenerationRequest(
            request_id=grant.lease_id,
            prompt_ids=[1 + grant.row % (self.vocabulary - 1), 1],
            sampling=SamplingSettings(1.0, 1.0, 0, 1.0, answer.num_tokens, ()),
            row=grant.row,
            index=grant.samples[0].index,
        )
        times = [time.time()]
        async for chunk in self.engine.generate(request):
            times.append(time.time())
            self.held[grant.lease_id] = self.held.get(grant.lease_id, 0) + len(chunk.token_ids)
        self.requests.append((times[0], 2, answer.num_tokens, times[1], times[-1]))
        self._ended_at[grant.lease_id] = time.perf_counter()

    def _ended(self, lease_id: str, task: asyncio.Task[None]) -> None:
        if lease_id in self._ended_at:
            self.reports.append(time.perf_counter() - self._ended_at.pop(lease_id))
        super()._ended(lease_id, task)


async def run(arguments: argparse.Namespace) -> None:
    job = ResolvedJob.load(arguments.job)
    lengths = np.load(arguments.lengths)
    ids = [common_pb2.ReplicaId(name=name, instance=name) for name in arguments.names]
    engines = [choose_engine(job, replica, stop_token_ids=()) for replica in ids]
    vocabulary = vocabulary_size(arguments.model)
    for engine in engines:
        await engine.start()
    if arguments.profile is not None:
        slots = job.spec.rollout.max_concurrent_samples
        batches = tuple(batch for batch in (1, 2, 4, 8, 16, 32) if batch < slots)
        sweep = Sweep(batches=(*batches, slots), contexts=(2, 128), prefills=(2, 64), tokens=64, repeats=3)
        say = lambda message: print(message, file=sys.stderr)  # noqa: E731
        measured = await measure(engines[0], arguments.model, sweep, vocabulary=vocabulary, say=say)
        arguments.profile.write_text(measured.model.to_json())
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    replicas: list[LiveReplica] = []
    calls: list[float] = []
    reports: list[float] = []
    for name, engine in zip(arguments.names, engines, strict=True):
        stored = connect_to(
            job.endpoints.store,
            username="rollout",
            password_file=Path(job.secrets.store_password_files["rollout"]),
            timeout_s=30.0,
        )
        client = TimedClient(job, "rollout")
        client.calls = calls
        replica = LiveReplica(
            client,
            SampleStream(stored, job.uid),
            name=name,
            slots=job.spec.rollout.max_concurrent_samples,
            script=lambda grant: Answer(int(lengths[grant.row, grant.samples[0].index])),
        )
        replica.engine, replica.weights, replica.vocabulary = engine, arguments.model, vocabulary
        replica.reports, replica.requests, replica.loads, replica._ended_at = reports, [], [], {}
        replicas.append(replica)
    await asyncio.gather(*(replica.run() for replica in replicas))
    story = {
        "turnaround_s": statistics.median(calls) + statistics.median(reports),
        "replicas": [{"requests": each.requests, "loads": each.loads} for each in replicas],
    }
    arguments.story.write_text(json.dumps(story))
    for engine in engines:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("lengths", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--story", type=Path, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
