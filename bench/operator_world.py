"""What the operator's benchmark runs in: a control plane with fake nodes, schedulers that answer, and the operator."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import yaml
from drumroll_operator.cluster import RLJOBS, Raw
from drumroll_proto.v1 import scheduler_pb2 as pb
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server

NAMESPACE = "bench"
NETWORK = {
    "NODE_IP": "198.19.192.1",
    "HOST_IP": "198.19.192.2",
    "POD_CIDR": "198.19.208.0/20",
    "SVC_CIDR": "198.19.224.0/20",
    "API_SVC_IP": "198.19.224.1",
    "DNS_IP": "198.19.224.10",
    "KWOK_CIDR": "198.19.240.0/20",
    "VETH": "rlj1",
    "CGROUP": "rlj-bench",
    "CONTROL_PLANE_ONLY": "1",
}


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Kubeconfig of a control plane with fake nodes, gone afterwards."""
    tools = Path(os.environ["DRUMROLL_CLUSTER"])
    with tempfile.TemporaryDirectory(prefix="rlb") as state:
        environment = {**os.environ, **NETWORK, "RUN": f"{state}/run"}

        def tool(name: str, *arguments: str) -> None:
            subprocess.run([tools / name, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)

        tool("ensure.sh")
        try:
            tool("up.sh")
            tool("kwok.sh", str(nodes), "8")
            yield f"{state}/run/admin.kubeconfig"
        finally:
            tool("down.sh")


class AnySchedulers(SchedulerServicer):
    """The schedulers of all jobs."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._begun: dict[str, float] = {}
        self.calls = 0

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802 - gRPC's name
        self.calls += 1
        now = time.monotonic()
        step = int((now - self._begun.setdefault(request.header.job_uid, now)) / self._step_s)
        replicas = [pb.ReplicaStatus(name=f"rollout-{i}", attested=True, version=step, leases=64) for i in range(7)]
        reply = pb.StatusReply(phase="Running", steps_done=step, steps_total=1000, version=step, replicas=replicas)
        reply.newest.present, reply.newest.version, reply.trainer_registered = True, step, True
        reply.header.incarnation = 1
        reply.gauges["accepted_count"] = 64.0 * step
        return reply

    async def SetLive(self, request: pb.SetLiveRequest, context: Any) -> pb.SetLiveReply:  # noqa: N802 - gRPC's name
        return pb.SetLiveReply()


@asynccontextmanager
async def answering(schedulers: AnySchedulers) -> AsyncIterator[None]:
    """All addresses of the fake pods are this machine's."""
    route = ["local", NETWORK["KWOK_CIDR"], "dev", "lo"]
    await (await asyncio.create_subprocess_exec("ip", "route", "replace", *route)).wait()
    server = grpc.aio.server()
    add_SchedulerServicer_to_server(schedulers, server)
    server.add_insecure_port("0.0.0.0:50051")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
        await (await asyncio.create_subprocess_exec("ip", "route", "del", *route)).wait()


class OperatorProcess:
    """`python -m drumroll_operator`, and what it uses."""

    def __init__(self, folder: Path, kubeconfig: str) -> None:
        self._folder = folder
        images = {role: {"reference": f"localhost/{role}:1"} for role in ("scheduler", "rollout", "trainer")}
        (folder / "key").write_bytes(os.urandom(32).hex().encode())
        settings = {"images": images, "defaultClaim": "files", "keyFile": str(folder / "key")}
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        self._command = [sys.executable, "-m", "drumroll_operator", "--port=0", "--host=127.0.0.1"]
        self._command += [f"--settings={folder}/settings.yaml", f"--kubeconfig={kubeconfig}"]
        self._handle: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.peak_rss = 0

    def start(self) -> None:
        self._log = (self._folder / "operator.log").open("wb")
        self._handle = subprocess.Popen(self._command, stderr=self._log)
        self._process = psutil.Process(self._handle.pid)
        self._port = 0

    def kill(self) -> None:
        assert self._handle is not None
        self._handle.kill()
        self._handle.wait()
        self._log.close()

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def look(self) -> int:
        """Resident bytes now."""
        rss = int(self._process.memory_info().rss)
        self.peak_rss = max(self.peak_rss, rss)
        return rss

    async def metrics(self) -> dict[str, float]:
        """Samples by name with labels; empty before it serves them."""
        if not self._port:
            found = re.search(r"on port (\d+)", (self._folder / "operator.log").read_text())
            if found is None:
                return {}
            self._port = int(found.group(1))
        return await asyncio.to_thread(_scrape, self._port)


def _scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def job(index: int) -> Raw:
    """Ten pods on fake nodes."""
    patch = {
        "spec": {
            "nodeSelector": {"type": "kwok"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}],
        }
    }
    small = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return {
        "apiVersion": RLJOBS.api_version,
        "kind": "RLJob",
        "metadata": {"name": f"job-{index}", "namespace": NAMESPACE},
        "spec": {
            "model": {"path": "models/tiny"},
            "data": {"train": {"path": "data/train.jsonl"}, "maxPromptTokens": 128, "maxResponseTokens": 64},
            "reward": {"type": "math"},
            "steps": 1000,
            "rollout": {"replicas": 7, "resources": small, "podTemplatePatch": patch},
            "trainer": {"replicas": 1, "resources": small, "podTemplatePatch": patch},
            "scheduler": {"resources": small, "podTemplatePatch": patch},
            "stream": {"embedded": {"resources": small, "podTemplatePatch": patch}},
        },
    }
