"""Replicas of a live run, in a process of their own: real engines, forced lengths, the scheduler's real protocol.

    python bench/simulator_replicas.py JOB_JSON LENGTHS_NPY MODEL_DIR NAME [NAME ...] [--profile COSTS_JSON]

With --profile the engine is measured first, while the other processes measure theirs, and the fit is written.
Started by bench/simulator.py; prints a line once it is ready.
"""

import argparse
import asyncio
import sys
from pathlib import Path

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


class LiveReplica(ScriptedReplica):
    """A replica whose answers come from an engine, each as long as it is told."""

    engine: Engine
    lengths: np.ndarray
    weights: Path
    vocabulary: int

    async def load(self, version: int) -> None:
        await self.engine.load_weights(version, self.weights)

    async def generate(self, grant: pb.LeaseGrant, answer: Answer) -> None:
        request = GenerationRequest(
            request_id=grant.lease_id,
            prompt_ids=[1 + grant.row % (self.vocabulary - 1), 1],
            sampling=SamplingSettings(1.0, 1.0, 0, 1.0, answer.num_tokens, ()),
            row=grant.row,
            index=grant.samples[0].index,
        )
        async for chunk in self.engine.generate(request):
            self.held[grant.lease_id] = self.held.get(grant.lease_id, 0) + len(chunk.token_ids)


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
    replicas = []
    for name, engine in zip(arguments.names, engines, strict=True):
        stored = connect_to(
            job.endpoints.store,
            username="rollout",
            password_file=Path(job.secrets.store_password_files["rollout"]),
            timeout_s=30.0,
        )
        replica = LiveReplica(
            SchedulerClient(job, "rollout"),
            SampleStream(stored, job.uid),
            name=name,
            slots=job.spec.rollout.max_concurrent_samples,
            script=lambda grant: Answer(int(lengths[grant.row, grant.samples[0].index])),
        )
        replica.engine, replica.lengths, replica.weights, replica.vocabulary = (
            engine,
            lengths,
            arguments.model,
            vocabulary,
        )
        replicas.append(replica)
    await asyncio.gather(*(replica.run() for replica in replicas))
    for engine in engines:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("lengths", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--profile", type=Path)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
