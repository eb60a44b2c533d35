"""How long the scheduler takes from a decoded request to its queued reply, journal append included.

    python bench/scheduler.py                          # 10,000 replicas
    python bench/scheduler.py --replicas 200 --slots 16 --answer-seconds 0 --heartbeat 2 --ramp 1    # what saturates it

One scheduler in this process, an embedded store with a synced append-only file, and replicas that speak real gRPC from
processes of their own. `--answer-seconds` is the median time of an answer (log-normal, sigma 0.5), `--heartbeat` the
time between heartbeats: together with replicas and slots they are the load. With 0 seconds every replica asks again
at once, which measures what saturates the scheduler instead. The job's admission credit is larger than the fleet, so
that a lease call is served at once.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_scheduler.__main__ import collect_rarely
from drumroll_scheduler.app import App, Settings
from drumroll_scheduler.scripted_job import UID, scripted_job
from drumroll_scheduler.scripted_replica import Answer, ScriptedReplica
from drumroll_scheduler.scripted_trainer import ScriptedTrainer
from drumroll_scheduler.service import SchedulerService

from drumroll.embedded import EmbeddedStore, free_port
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.store import connect_to
from drumroll.stream import SampleStream
from drumroll.testing import eventually

SHOWN = ("Lease", "Report", "Heartbeat", "Commit")
TARGET_MS = 20.0
IDLE_WAIT_MS = 30_000


def measure_calls() -> dict[str, list[float]]:
    """Time every call from here on; seconds by method. Lease calls that found nothing are left out."""
    times: dict[str, list[float]] = {}
    answer = SchedulerService._answer

    async def timed(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        reply = await answer(self, method, *args, **kwargs)
        if method != "Lease" or reply.leases:
            times.setdefault(method, []).append(time.perf_counter() - started)
        return reply

    SchedulerService._answer = timed  # type: ignore[method-assign]
    return times


def spec(args: argparse.Namespace) -> dict[str, Any]:
    """A job whose admission credit is larger than the fleet: there is always work to lease."""
    places = args.replicas * args.slots
    prompts = max(64, places // 16)
    # These answers tell of no progress before their end.
    lease_s = max(60.0, 4 * args.heartbeat, 20 * args.answer_seconds)
    return {
        "algorithm": {"groupSize": 8, "promptsPerStep": prompts},
        "maxPolicyLag": 8,
        "targetPolicyLag": 4,
        "steps": 100_000,
        "trainer": {"checkpoint": {"everySteps": 2}},
        "scheduler": {"heartbeatSeconds": args.heartbeat, "leaseSeconds": lease_s},
    }


async def replicas(folder: Path, first: int, args: argparse.Namespace) -> None:
    """A process's share of the replicas, started evenly over the ramp; they work until they are killed."""
    job = ResolvedJob.load(folder / "job.json")
    redis = connect_to(job.endpoints.store, username="rollout", password_file=folder / "rollout.password")
    generator = random.Random(first)
    count = args.replicas // args.processes

    def script(_: pb.LeaseGrant) -> Answer:
        return Answer(
            num_tokens=1, reward=generator.random(), seconds=generator.lognormvariate(0, 0.5) * args.answer_seconds
        )

    async def one(number: int) -> None:
        await asyncio.sleep(args.ramp * (number - first) / count)
        client, stream = SchedulerClient(job, "rollout"), SampleStream(redis, UID)
        name = f"rollout-{number}"
        await ScriptedReplica(client, stream, name=name, slots=args.slots, script=script, wait_ms=IDLE_WAIT_MS).run()

    await asyncio.gather(*(one(number) for number in range(first, first + count)))


async def bench(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    times = measure_calls()
    collect_rarely()
    async with EmbeddedStore(directory, UID, max_bytes=4 << 30) as store:
        passwords = store.password_files
        job = scripted_job(
            directory,
            store_url=store.url,
            store_passwords=passwords,
            port=free_port(),
            num_prompts=50_000,
            spec=spec(args),
        )
        (directory / "job.json").write_text(job.to_json())
        app = App(job, settings=Settings())
        serving = asyncio.create_task(app.run())
        await asyncio.wait_for(app.serving.wait(), 60)
        client = SchedulerClient(job, "trainer")
        trainer = ScriptedTrainer(client, SampleStream(store.connect("trainer"), UID), job.layout.checkpoints_dir)
        training = asyncio.create_task(trainer.run())
        share = args.replicas // args.processes
        options = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in OPTIONS]
        workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--worker", str(directory), str(number * share), *options
            )
            for number in range(args.processes)
        ]
        try:
            return await _measure(args, app, times)
        finally:
            for worker in workers:
                worker.kill()
                await worker.wait()
            training.cancel()
            app.stop()
            await asyncio.gather(training, serving, return_exceptions=True)


async def _measure(args: argparse.Namespace, app: App, times: dict[str, list[float]]) -> dict[str, Any]:
    await eventually(lambda: app.core is not None and len(app.core.presence) >= args.replicas, 600.0, "all replicas")
    # The first answers of all replicas begin with the ramp: wait until as many end as begin.
    await asyncio.sleep(1.25 * args.answer_seconds)
    core = app.core
    assert core is not None
    before = core.policy.gauges()
    seq, started, cpu = core.journal.last_seq, time.perf_counter(), time.process_time()
    times.clear()
    await asyncio.sleep(args.seconds)
    seconds, after = time.perf_counter() - started, core.policy.gauges()
    row: dict[str, Any] = {
        "replicas": args.replicas,
        "seconds": round(seconds, 2),
        "leases_per_s": round((after["leased_count"] - before["leased_count"]) / seconds),
        "reports_per_s": round((after["accepted_count"] - before["accepted_count"]) / seconds),
        "appends_per_s": round((core.journal.last_seq - seq) / seconds),
        "replicas_waiting": round(after["replicas_waiting"]),
        "cpu_share": round((time.process_time() - cpu) / seconds, 2),
    }
    for method in SHOWN:
        if values := times.get(method):
            p50, p99 = np.percentile(values, [50, 99]) * 1000
            row[method] = {"calls": len(values), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}
    return row


def show(row: dict[str, Any]) -> None:
    """A table for people, then the row."""
    print(
        f"{row['replicas']:,} replicas: {row['leases_per_s']} leases, {row['reports_per_s']} reports a second, "
        f"{row['cpu_share']:.0%} of a core"
    )
    for method in SHOWN:
        if method in row:
            told = row[method]
            target = f" (target: p99 under {TARGET_MS:.0f} ms)" if method == "Lease" else ""
            figures = f"p50 {told['p50_ms']:7.2f} ms, p99 {told['p99_ms']:7.2f} ms{target}"
            print(f"  {method:10}{told['calls']:8,} calls, {figures}")
    print(json.dumps(row))


OPTIONS = ("replicas", "slots", "processes", "answer_seconds", "heartbeat", "ramp", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--answer-seconds", type=float, default=160.0)
    parser.add_argument("--heartbeat", type=float, default=30.0, help="seconds between heartbeats of a replica")
    parser.add_argument("--ramp", type=float, default=90.0, help="seconds over which the replicas start")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds that are measured")
    parser.add_argument("--worker", nargs=2, metavar=("DIR", "FIRST"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        asyncio.run(replicas(Path(args.worker[0]), int(args.worker[1]), args))
        return
    with tempfile.TemporaryDirectory() as folder:
        show(asyncio.run(bench(args, Path(folder))))


if __name__ == "__main__":
    main()
