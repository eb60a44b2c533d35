"""How many leases the scheduler gives a second, and how long a call takes from decoded request to queued reply.

    python bench/scheduler.py --replicas 200 --seconds 10

One scheduler in this process, an embedded store with a synced append-only file, and replicas that answer at once, in
processes of their own. The journal append is part of every time. Prints one JSON row.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from drumroll_scheduler.app import App, Settings
from drumroll_scheduler.scripted_job import UID, scripted_job
from drumroll_scheduler.scripted_replica import ScriptedReplica
from drumroll_scheduler.scripted_trainer import ScriptedTrainer
from drumroll_scheduler.service import SchedulerService

from drumroll.embedded import EmbeddedStore, free_port
from drumroll.job import ResolvedJob
from drumroll.rpc import SchedulerClient
from drumroll.store import connect_to
from drumroll.stream import SampleStream
from drumroll.testing import eventually

SPEC = {
    "algorithm": {"groupSize": 8, "promptsPerStep": 256},
    "maxPolicyLag": 4,
    "targetPolicyLag": 4,
    "steps": 100_000,
    "trainer": {"checkpoint": {"everySteps": 2}},
    "scheduler": {"heartbeatSeconds": 2.0, "leaseSeconds": 60.0},
}


def measure_calls() -> dict[str, list[float]]:
    """Time every call from here on; seconds by method."""
    times: dict[str, list[float]] = {}
    answer = SchedulerService._answer

    async def timed(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return await answer(self, method, *args, **kwargs)
        finally:
            times.setdefault(method, []).append(time.perf_counter() - started)

    SchedulerService._answer = timed  # type: ignore[method-assign]
    return times


async def replicas(job_file: Path, password_file: Path, first: int, count: int) -> None:
    """Replicas that work until they are killed."""
    job = ResolvedJob.load(job_file)
    redis = connect_to(job.endpoints.store, username="rollout", password_file=password_file)
    work = [
        ScriptedReplica(SchedulerClient(job, "rollout"), SampleStream(redis, UID), name=f"rollout-{number}", slots=16)
        for number in range(first, first + count)
    ]
    await asyncio.gather(*(replica.run() for replica in work))


async def bench(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    times = measure_calls()
    async with EmbeddedStore(directory, UID, max_bytes=1 << 30) as store:
        passwords = store.password_files
        job = scripted_job(
            directory, store_url=store.url, store_passwords=passwords, port=free_port(), num_prompts=20_000, spec=SPEC
        )
        (directory / "job.json").write_text(job.to_json())
        app = App(job, settings=Settings())
        serving = asyncio.create_task(app.run())
        await asyncio.wait_for(app.serving.wait(), 30)
        trainer = ScriptedTrainer(
            SchedulerClient(job, "trainer"), SampleStream(store.connect("trainer"), UID), job.layout.checkpoints_dir
        )
        training = asyncio.create_task(trainer.run())
        share = args.replicas // args.processes
        workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--worker", str(directory), str(number * share), str(share)
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
    assert app.core is not None
    core = app.core
    await eventually(lambda: core.policy.gauges()["accepted_count"] > 100, 60.0, "a hundred samples")
    before = app.core.policy.gauges()
    seq, started, cpu = app.core.journal.last_seq, time.perf_counter(), time.process_time()
    times.clear()
    await asyncio.sleep(args.seconds)
    seconds, after = time.perf_counter() - started, app.core.policy.gauges()
    row: dict[str, Any] = {
        "replicas": args.replicas,
        "seconds": round(seconds, 2),
        "leases_per_s": round((after["leased_count"] - before["leased_count"]) / seconds),
        "reports_per_s": round((after["accepted_count"] - before["accepted_count"]) / seconds),
        "appends_per_s": round((app.core.journal.last_seq - seq) / seconds),
        "cpu_share": round((time.process_time() - cpu) / seconds, 2),
    }
    for method, values in sorted(times.items()):
        if method in ("Report", "Heartbeat", "Commit"):
            p50, p99 = np.percentile(values, [50, 99]) * 1000
            row[method] = {"calls": len(values), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--worker", nargs=3, metavar=("DIR", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        folder = Path(args.worker[0])
        first, count = int(args.worker[1]), int(args.worker[2])
        asyncio.run(replicas(folder / "job.json", folder / "rollout.password", first, count))
        return
    with tempfile.TemporaryDirectory() as folder_name:
        print(json.dumps(asyncio.run(bench(args, Path(folder_name)))))


if __name__ == "__main__":
    main()
