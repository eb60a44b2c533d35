"""The operator with a thousand jobs and ten thousand pods on an API server of its own, with fake nodes (KWOK).

    DRUMROLL_CLUSTER=<folder of up.sh and kwok.sh> python bench/operator_scale.py                       # 1,000 jobs
    DRUMROLL_CLUSTER=... python bench/operator_scale.py --jobs 50 --rate 2 --events 50                  # a quick look

Jobs of ten pods arrive at `--rate` a second; API server, scheduler and fake nodes share this machine's cores with the
operator, so that the rate is a condition of the figures. Then `--events` rollout pods are evicted, `--event-rate` a
second. At last the operator is killed and started again. This process answers for the schedulers of all jobs, each of
which commits a step in `--step-seconds`; with `--silent` nobody answers, which is the worst case for the operator. All
times are taken by a watch of this process: they hold the API server's share as well.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml
from drumroll_operator.cluster import PODS, RLJOBS, Kind, Raw
from drumroll_operator.kube_cluster import KubeCluster, load_configuration
from drumroll_operator.watch import Watch
from operator_world import NAMESPACE, AnySchedulers, OperatorProcess, answering, cluster, job

from drumroll.api.crd import crd_yaml
from drumroll.testing import eventually

_RESTART_LIMIT_S = 180.0


@dataclass
class Times:
    """What two watches saw, and when (monotonic seconds)."""

    bound: dict[str, float] = field(default_factory=dict)
    """Job: its trainer got a node."""
    first_rollout: dict[str, float] = field(default_factory=dict)
    """Job: its first rollout pod was made."""
    store_ready: dict[str, float] = field(default_factory=dict)
    store_told: dict[str, float] = field(default_factory=dict)
    """Job: its status said so."""
    leaving: dict[str, float] = field(default_factory=dict)
    """Uid of a pod: its deletion was asked for, or it was gone."""
    pods: dict[str, str] = field(default_factory=dict)
    """Name: uid."""
    ready: set[str] = field(default_factory=set)
    """Uids."""
    writes: Counter[str] = field(default_factory=Counter)
    """Job: changes of its object."""


class PodSink:
    def __init__(self, times: Times) -> None:
        self._times = times

    def changed(self, raw: Raw) -> None:
        now, times = time.monotonic(), self._times
        metadata, labels = raw["metadata"], raw["metadata"].get("labels", {})
        job, role = labels.get("drumroll.dev/job", ""), labels.get("drumroll.dev/role", "")
        times.pods[metadata["name"]] = metadata["uid"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in raw["status"].get("conditions", []))
        if ready:
            times.ready.add(metadata["uid"])
        if role == "trainer" and "nodeName" in raw["spec"]:
            times.bound.setdefault(job, now)
        if role == "store" and ready:
            times.store_ready.setdefault(job, now)
        if role == "rollout":
            times.first_rollout.setdefault(job, now)
        if "deletionTimestamp" in metadata:
            times.leaving.setdefault(metadata["uid"], now)

    def deleted(self, raw: Raw) -> None:
        name, uid = raw["metadata"]["name"], raw["metadata"]["uid"]
        self._times.leaving.setdefault(uid, time.monotonic())
        if self._times.pods.get(name) == uid:
            del self._times.pods[name]

    def listed(self, namespace: str | None, present: set[tuple[str, str]], resource_version: str) -> None:
        pass


class JobSink:
    def __init__(self, times: Times) -> None:
        self._times = times

    def changed(self, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        self._times.writes[name] += 1
        conditions = raw.get("status", {}).get("conditions", [])
        if any(c["type"] == "StreamReady" and c["status"] == "True" for c in conditions):
            self._times.store_told.setdefault(name, time.monotonic())

    def deleted(self, raw: Raw) -> None:
        pass

    def listed(self, namespace: str | None, present: set[tuple[str, str]], resource_version: str) -> None:
        pass


def total(metrics: dict[str, float], name: str, **labels: str) -> float:
    """Sum of a metric's samples that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        value
        for sample, value in metrics.items()
        if sample.partition("{")[0] == name and all(pair in sample for pair in wanted)
    )


def mean(before: dict[str, float], after: dict[str, float], name: str, **labels: str) -> float:
    """Of a histogram's observations between two scrapes."""
    name = f"drumroll_operator_{name}"
    count = total(after, f"{name}_count", **labels) - total(before, f"{name}_count", **labels)
    return (total(after, f"{name}_sum", **labels) - total(before, f"{name}_sum", **labels)) / max(count, 1.0)


class Bench:
    def __init__(self, args: argparse.Namespace, admin: KubeCluster, operator: OperatorProcess) -> None:
        self.args = args
        self.admin = admin
        self.operator = operator
        self.times = Times()
        self.schedulers = AnySchedulers(args.step_seconds)
        self.pods = Watch(admin, PODS, NAMESPACE, PodSink(self.times), labels="drumroll.dev/job")
        self.jobs = Watch(admin, RLJOBS, NAMESPACE, JobSink(self.times))
        self.rows: list[tuple[str, str, str]] = []

    def row(self, what: str, value: str, target: str = "") -> None:
        self.rows.append((what, value, target))
        print(f"{what:58} {value:>26}  {target}", flush=True)

    def latency(self, what: str, seconds: list[float], target: str = "") -> None:
        if not seconds:
            self.row(what, "nothing measured", target)
            return
        ordered = sorted(seconds)
        p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        text = f"p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms"
        self.row(f"{what} ({len(ordered)})", text, target)

    async def prepare(self) -> None:
        """CRD, namespace, and a volume that all pods mount."""
        crd = yaml.safe_load(crd_yaml())
        kinds = {
            "CustomResourceDefinition": Kind(crd["kind"], crd["apiVersion"], "customresourcedefinitions"),
            "Namespace": Kind("Namespace", "v1", "namespaces"),
            "PersistentVolume": Kind("PersistentVolume", "v1", "persistentvolumes"),
        }
        claim = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {
            **claim,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/nonexistent"},
            "claimRef": {"namespace": NAMESPACE, "name": "files"},
        }
        raws = [
            crd,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "files"}, "spec": volume},
        ]
        for raw in raws:
            await self.admin._call("create", "POST", kinds[raw["kind"]], None, body=raw)
        asked = {**claim, "volumeName": "files", "resources": {"requests": {"storage": "1Gi"}}}
        raw = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "files"}, "spec": asked}
        claims = Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims")
        await self.admin._call("create", "POST", claims, NAMESPACE, body=raw)
        await eventually(lambda: self.admin.serves(RLJOBS), 30.0)

    async def run(self) -> None:
        await self.prepare()
        self.operator.start()
        tasks = [asyncio.create_task(part) for part in (self.pods.run(), self.jobs.run(), self.look())]
        try:
            await eventually(self.operator.metrics, 60.0, "the operator serves metrics")
            await self.arrive()
            await self.evict()
            await self.rest()
            await self.restart()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.operator.kill()

    async def look(self) -> None:
        while True:
            with suppress(psutil.NoSuchProcess):
                self.operator.look()
            await asyncio.sleep(1.0)

    async def arrive(self) -> None:
        """All jobs, at the rate; until all of their pods are ready and told."""
        args, times = self.args, self.times
        begun, cpu = time.monotonic(), self.operator.cpu_s()
        for index in range(args.jobs):
            await asyncio.sleep(max(0.0, begun + index / args.rate - time.monotonic()))
            await self.admin.create(job(index))
        wanted = args.jobs * 10
        limit_s = 120.0 + wanted / 20
        await eventually(lambda: len(times.ready) >= wanted, limit_s, f"{wanted} ready pods")
        await eventually(lambda: len(times.store_told) >= args.jobs, 60.0)
        seconds = time.monotonic() - begun
        self.row("jobs, pods", f"{args.jobs}, {len(times.pods)}")
        self.row("from the first job to the last ready pod", f"{seconds:.0f} s at {args.rate:g} jobs/s")
        reactions = [at - times.bound[name] for name, at in times.first_rollout.items() if name in times.bound]
        self.latency("arriving: trainer bound -> first rollout created", reactions, "p99 < 1 s")
        lags = [at - times.store_ready[name] for name, at in times.store_told.items() if name in times.store_ready]
        self.latency("arriving: store ready -> status says so", lags, "p99 < 5 s")
        metrics = await self.operator.metrics()
        calls = total(metrics, "drumroll_operator_api_requests_total")
        self.row("API calls of a job until all of it is ready", f"{calls / args.jobs:.1f}")
        by_verb = Counter[str]()
        for sample, value in metrics.items():
            found = re.match(
                r'drumroll_operator_api_requests_total\{code="(\d+)",resource="([^"]+)",verb="(\w+)"', sample
            )
            if found:
                by_verb[f"{found[3]} {found[2]} {found[1]}"] += int(value)
        self.row("  of them", ", ".join(f"{k}: {v / args.jobs:.1f}" for k, v in by_verb.most_common(6)))
        self.row("status writes of a job", f"{(times.writes.total() - args.jobs) / args.jobs:.1f}")
        self.row("CPU while they arrive", f"{(self.operator.cpu_s() - cpu) / seconds * 100:.0f} % of a core")
        self.row("memory (RSS) with all of them", f"{self.operator.look() / 1e6:.0f} MB", "< 250 MB")

    async def evict(self) -> None:
        """Rollout pods end as evicted ones do; the operator deletes each and makes another."""
        args, times = self.args, self.times
        # Pods that end within half a minute of their creation are replaced with a delay, on purpose.
        await asyncio.sleep(30.0)
        names = [name for name in times.pods if "-rollout-" in name]
        chosen = random.Random(1).sample(names, min(args.events, len(names)))
        told: dict[str, float] = {}
        answered: list[float] = []
        before = await self.operator.metrics()
        begun = time.monotonic()
        for index, name in enumerate(chosen):
            await asyncio.sleep(max(0.0, begun + index / args.event_rate - time.monotonic()))
            uid = times.pods[name]
            status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
            merge = "application/merge-patch+json"
            told[uid] = time.monotonic()
            await self.admin._call(
                "patch", "PATCH", PODS, NAMESPACE, name, subresource="status", body={"status": status}, media=merge
            )
            answered.append(time.monotonic() - told[uid])
        await eventually(lambda: all(uid in times.leaving for uid in told), 60.0, "all evicted pods are replaced")
        reactions = [times.leaving[uid] - at for uid, at in told.items()]
        self.latency(f"evicted at {args.event_rate:g}/s: event -> deletion seen", reactions, "p99 < 1 s")
        seconds = time.monotonic() - begun
        self.row("  evictions really made", f"{len(told) / seconds:.1f} a second")
        self.latency("  of it: the API server's answer to the event", answered)
        after = await self.operator.metrics()
        for what, name, labels in (
            ("  of it: wait for a worker", "queue_wait_seconds", {}),
            ("  of it: the operator's deletion", "action_seconds", {"action": "DeletePod", "result": "ok"}),
            ("  one reconcile, all its calls", "reconcile_seconds", {"result": "ok"}),
        ):
            self.row(what, f"mean {mean(before, after, name, **labels) * 1e3:.0f} ms")
        await eventually(lambda: len(times.pods) == args.jobs * 10, 60.0, "as many pods as before")

    async def rest(self) -> None:
        """Nothing happens."""
        await asyncio.sleep(15.0)
        before, cpu = await self.operator.metrics(), self.operator.cpu_s()
        asked = self.schedulers.calls
        await asyncio.sleep(self.args.rest)
        after = await self.operator.metrics()
        cpu = (self.operator.cpu_s() - cpu) / self.args.rest
        calls = sum(total(m, "drumroll_operator_api_requests_total") * sign for m, sign in ((after, 1), (before, -1)))
        self.row("at rest: CPU", f"{cpu * 100:.1f} % of a core")
        self.row("at rest: schedulers asked", f"{(self.schedulers.calls - asked) / self.args.rest:.1f} a second")
        self.row("at rest: API calls", f"{calls / self.args.rest:.2f} a second")
        self.row("memory (RSS), highest", f"{self.operator.peak_rss / 1e6:.0f} MB", "< 250 MB")
        lag = after.get("drumroll_operator_loop_lag_seconds", 0.0)
        self.row("event loop, latest of the last minute", f"{lag * 1e3:.0f} ms")

    async def restart(self) -> None:
        """Kill it and start another; no pod may change."""
        args = self.args
        before, writes = dict(self.times.pods), self.times.writes.total()
        self.operator.kill()
        begun = time.monotonic()
        self.operator.peak_rss = 0
        self.operator.start()

        async def in_sync() -> bool:
            metrics = await self.operator.metrics()
            done = total(metrics, "drumroll_operator_reconcile_seconds_count", result="ok")
            return done >= args.jobs and metrics.get("drumroll_operator_queue_depth") == 0.0

        await eventually(in_sync, _RESTART_LIMIT_S, "the new operator is in sync")
        self.row("from restart to in sync", f"{time.monotonic() - begun:.1f} s", "< 30 s")
        await asyncio.sleep(args.rest)
        changed = {
            name for name in before.keys() | self.times.pods.keys() if before.get(name) != self.times.pods.get(name)
        }
        self.row("pods changed by the restart", str(len(changed)), "0")
        self.row(
            "status writes of the restart, for each job", f"{(self.times.writes.total() - writes) / args.jobs:.2f}"
        )
        self.row("memory (RSS) after the restart, highest", f"{self.operator.peak_rss / 1e6:.0f} MB", "< 250 MB")


async def measure(args: argparse.Namespace, kubeconfig: str, folder: Path) -> list[tuple[str, str, str]]:
    admin = KubeCluster(await load_configuration(kubeconfig))
    bench = Bench(args, admin, OperatorProcess(folder, kubeconfig))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        if not args.silent:
            await stack.enter_async_context(answering(bench.schedulers))
        await bench.run()
    return bench.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="each has ten pods")
    parser.add_argument("--rate", type=float, default=2.0, help="jobs that arrive in a second")
    parser.add_argument("--events", type=int, default=500, help="pods that are evicted")
    parser.add_argument("--event-rate", type=float, default=10.0, help="of them in a second")
    parser.add_argument("--rest", type=float, default=30.0, help="seconds of observing where nothing happens")
    parser.add_argument("--step-seconds", type=float, default=60.0, help="a job's time for a step")
    parser.add_argument("--silent", action="store_true", help="no scheduler answers")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    parser.add_argument("--keep", type=Path, help="folder for the operator's files and log")
    args = parser.parse_args()
    if "DRUMROLL_CLUSTER" not in os.environ:
        sys.exit("set DRUMROLL_CLUSTER to the folder of a cluster's up.sh and kwok.sh")
    nodes = max(5, -(-args.jobs * 10 // 200))
    with tempfile.TemporaryDirectory() as folder, cluster(nodes) as kubeconfig:
        kept = args.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        rows = asyncio.run(measure(args, kubeconfig, kept))
    if args.out:
        args.out.write_text(
            json.dumps([dict(zip(("what", "value", "target"), row, strict=True)) for row in rows], indent=1)
        )


if __name__ == "__main__":
    main()
