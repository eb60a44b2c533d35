"""Operators in this process on a real API server without kubelets: the tests play nodes, pods and schedulers."""

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from drumroll_operator.app import Operator
from drumroll_operator.cluster import PODS, RLJOBS, ApiError, Cluster, Kind, Raw
from drumroll_operator.handlers import follow_jobs
from drumroll_operator.kube_cluster import KubeCluster, load_configuration
from drumroll_operator.rendering import Renderer
from drumroll_operator.settings import OperatorSettings
from drumroll_proto.v1 import common_pb2, scheduler_pb2
from drumroll_proto.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server

from drumroll.testing import eventually

KEY = b"0123456789abcdef0123456789abcdef"
_ADDRESSES = itertools.count(2)
NAMESPACES = Kind("Namespace", "v1", "namespaces")
NODES = Kind("Node", "v1", "nodes")
SPEC = {
    "model": {"path": "models/tiny"},
    "data": {"train": {"path": "data/train.jsonl"}, "maxPromptTokens": 128, "maxResponseTokens": 64},
    "reward": {"type": "math"},
    "steps": 4,
    "rollout": {"replicas": 2},
    "trainer": {"replicas": 1},
}


def make_settings(**changes: Any) -> OperatorSettings:
    images = {role: {"reference": f"localhost/{role}:1"} for role in ("scheduler", "rollout", "trainer")}
    return OperatorSettings.model_validate({"images": images, "defaultClaim": "files", **changes})


@dataclass
class PlayedScheduler(SchedulerServicer):
    """Answers the operator's calls as it is told to."""

    reply: scheduler_pb2.StatusReply = field(default_factory=scheduler_pb2.StatusReply)
    live: dict[str, int] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    async def Status(self, request: Any, context: Any) -> scheduler_pb2.StatusReply:  # noqa: N802 - gRPC's name
        self.tokens.add(dict(context.invocation_metadata())["authorization"])
        self.reply.header.CopyFrom(common_pb2.ReplyHeader(incarnation=1))
        return self.reply

    async def SetLive(self, request: Any, context: Any) -> scheduler_pb2.SetLiveReply:  # noqa: N802 - gRPC's name
        self.live[request.name] = request.value
        if request.name == "steps":
            self.reply.steps_total = request.value
        return scheduler_pb2.SetLiveReply()


class Stage:
    """A namespace with a played node: pods are bound, run, become ready and go when they are deleted."""

    def __init__(self, admin: KubeCluster, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace
        self.ip = f"127.66.{(n := next(_ADDRESSES)) // 250}.{n % 250 + 1}"
        self.scheduler = PlayedScheduler()
        self.held: set[str] = set()
        """Names of pods that are not touched."""
        self.creations: list[tuple[str, str]] = []
        """Name and uid of every pod that was seen."""
        self.playing: asyncio.Task[None] | None = None

    def restart_playing(self) -> None:
        """Play on; after the API server was away."""
        if self.playing is not None:
            self.playing.cancel()
        self.playing = asyncio.create_task(self.play())

    async def play(self) -> None:
        """The node's loop."""
        version = ""
        async for page in self.admin.list(PODS, self.namespace):
            version = page.resource_version
            for pod in page.items:
                await self._step(pod)
        while True:
            async for event in self.admin.watch(PODS, self.namespace, resource_version=version):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] in ("ADDED", "MODIFIED"):
                    await self._step(event["object"])

    async def _step(self, pod: Raw) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if (name, uid) not in self.creations:
            self.creations.append((name, uid))
        if name in self.held:
            return
        try:
            if "deletionTimestamp" in pod["metadata"]:
                await self.admin.delete(PODS, self.namespace, name, uid=uid, grace_s=0)
            elif "nodeName" not in pod["spec"]:
                await self.bind(pod)
                await self.run_pod(pod)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def bind(self, pod: Raw) -> None:
        name = pod["metadata"]["name"]
        target = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": self.namespace},
        }
        await self.admin._call("create", "POST", PODS, self.namespace, name, subresource="binding", body=target)

    async def run_pod(self, pod: Raw) -> None:
        role = pod["metadata"]["labels"]["drumroll.dev/role"]
        state = {"name": role, "image": "x", "imageID": "x", "ready": True, "restartCount": 0, "started": True}
        await self.set_status(
            pod["metadata"]["name"],
            phase="Running",
            podIP=self.ip,
            podIPs=[{"ip": self.ip}],
            conditions=[_condition("Ready", "True"), _condition("PodScheduled", "True")],
            containerStatuses=[{**state, "state": {"running": {"startedAt": now()}}}],
        )

    async def end_pod(self, name: str, code: int, *, reason: str = "", message: str = "", ago_s: float = 0.0) -> None:
        role = (await self.get(PODS, name))["metadata"]["labels"]["drumroll.dev/role"]
        end = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "message": message}
        end |= {"startedAt": now(ago_s), "finishedAt": now(ago_s)}
        state = {"name": role, "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        await self.set_status(
            name,
            phase="Failed" if code else "Succeeded",
            conditions=[_condition("Ready", "False"), _condition("PodScheduled", "True")],
            containerStatuses=[{**state, "state": {"terminated": end}}],
        )

    async def set_status(self, name: str, **status: Any) -> Raw:
        merge = "application/strategic-merge-patch+json"
        return await self.admin._call(
            "patch", "PATCH", PODS, self.namespace, name, subresource="status", body={"status": status}, media=merge
        )

    async def submit(self, name: str = "job", **changes: Any) -> Raw:
        return await self.admin.create(
            {
                "apiVersion": RLJOBS.api_version,
                "kind": "RLJob",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {**SPEC, **changes},
            }
        )

    async def get(self, kind: Kind, name: str) -> Raw:
        return await self.admin.get(kind, self.namespace, name)

    async def job(self, name: str = "job") -> Raw:
        return await self.get(RLJOBS, name)

    async def all(self, kind: Kind) -> list[Raw]:
        return [raw async for page in self.admin.list(kind, self.namespace) for raw in page.items]

    async def uids(self) -> dict[str, str]:
        """Of the pods, by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await self.all(PODS)}

    async def condition(self, type_: str, name: str = "job") -> Raw:
        conditions = (await self.job(name)).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    async def phase(self, name: str = "job") -> str:
        return str((await self.job(name)).get("status", {}).get("phase", ""))

    async def until_phase(self, phase: str, name: str = "job", deadline_s: float = 20.0) -> None:
        async def there() -> bool:
            return await self.phase(name) == phase

        try:
            await eventually(there, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{phase}: {json.dumps((await self.job(name)).get('status'), indent=1)}") from error

    async def until_running(self, name: str = "job") -> None:
        """The job runs with all of its pods."""
        self.train(0)
        await self.until_phase("Running", name)

    def train(self, steps: int, total: int = 4) -> None:
        """The scheduler says that so many steps are done."""
        replicas = [
            scheduler_pb2.ReplicaStatus(name=f"rollout-{index}", attested=True, version=steps) for index in range(5)
        ]
        newest = scheduler_pb2.AnnouncedWeights(present=True, version=steps)
        gauges = {"accepted_count": 8.0 * steps}
        self.scheduler.reply = scheduler_pb2.StatusReply(
            phase="Running",
            steps_done=steps,
            steps_total=total,
            version=steps,
            newest=newest,
            replicas=replicas,
            gauges=gauges,
            trainer_registered=True,
        )

    async def complete(self, name: str = "job") -> None:
        """The processes end as those of a finished job do."""
        self.train(4)
        self.scheduler.reply.phase = "Complete"
        for pod in await self.all(PODS):
            if pod["metadata"]["labels"]["drumroll.dev/role"] in ("trainer", "rollout"):
                await self.end_pod(pod["metadata"]["name"], 0)
        said = json.dumps({"phase": "Complete", "reason": "", "step": 4, "steps": 4, "version": 4})
        await self.end_pod(f"{name}-scheduler", 0, message=said)


def now(ago_s: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(type_: str, status: str) -> Raw:
    return {"type": type_, "status": status, "lastTransitionTime": now()}


@pytest.fixture
async def admin(api_server: Any) -> AsyncIterator[KubeCluster]:
    """All rights."""
    cluster = KubeCluster(await load_configuration(api_server.environment["KUBECONFIG"]))
    yield cluster
    await cluster.close()


@pytest.fixture
async def stage(admin: KubeCluster) -> AsyncIterator[Stage]:
    """A fresh namespace whose pods are played."""
    name = f"operator-{uuid.uuid4().hex[:8]}"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await admin._call("create", "POST", NAMESPACES, None, body=namespace)
    # Without an object for it, the pods of a node are collected; without heartbeats, it lasts for this test.
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": True}}
    await admin._call("create", "POST", NODES, None, body=node)
    stage = Stage(admin, name)
    server = grpc.aio.server()
    add_SchedulerServicer_to_server(stage.scheduler, server)
    server.add_insecure_port(f"{stage.ip}:50051")
    await server.start()
    stage.restart_playing()
    yield stage
    assert stage.playing is not None
    stage.playing.cancel()
    await asyncio.gather(stage.playing, return_exceptions=True)
    await server.stop(None)
    for raw in await stage.all(PODS):
        await admin.delete(PODS, name, raw["metadata"]["name"], grace_s=0)
    await admin._call("delete", "DELETE", NODES, None, name)
    with contextlib.suppress(ApiError):
        await admin._call("delete", "DELETE", NAMESPACES, None, name)


@pytest.fixture(scope="session")
def settings() -> OperatorSettings:
    return make_settings()


StartOperator = Callable[..., Any]


@pytest.fixture
def run_operator(api_server: Any, stage: Stage) -> StartOperator:
    """A context that runs an operator on the stage's namespace, with kopf."""

    @asynccontextmanager
    async def running(
        *,
        cluster: Cluster | None = None,
        kubeconfig: str | None = None,
        prepare: Callable[[Operator], Awaitable[None]] | None = None,
        **options: Any,
    ) -> AsyncIterator[Operator]:
        own = KubeCluster(await load_configuration(kubeconfig or api_server.environment["KUBECONFIG"]))
        namespaces = options.pop("namespaces", [stage.namespace])
        renderer = Renderer(options.pop("settings", None) or make_settings(), KEY)
        options = {"identity": "test", "resync_every_s": 5.0, "poll_every_s": 0.2, **options}
        operator = Operator(cluster or own, renderer, namespaces=namespaces, **options)
        stop, last = asyncio.Event(), asyncio.Event()

        async def follow(heard: Any) -> None:
            await eventually(lambda: own.serves(RLJOBS))
            await follow_jobs(heard, access=own.access, namespaces=namespaces, stop=last, started=lambda: None)

        running = asyncio.create_task(operator.run(follow, stop=stop, last=last))
        try:
            yield operator
        finally:
            stop.set()
            try:
                await running
            finally:
                await own.close()

    return running
