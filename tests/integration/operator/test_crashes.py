"""The operator dies at every write that it makes, before the server has it or before the answer is back."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from drumroll_operator.app import Operator
from drumroll_operator.cluster import EVENTS, KINDS, PODS, RLJOBS, Raw
from drumroll_operator.rendering import Renderer
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.watch import Watch

from drumroll.testing import eventually

pytestmark = pytest.mark.cluster
KEY = b"0123456789abcdef0123456789abcdef"
WRITES = ("create", "apply", "merge", "update", "write_status", "delete")


class Crash(BaseException):
    """The process is gone."""


class MortalCluster:
    """Ends its process at the first write of a kind that none has died at so far; Events do not count."""

    def __init__(self, inner: Any, died_at: set[tuple[str, str]]) -> None:
        self._inner = inner
        self._died_at = died_at
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in WRITES:
            return call

        async def write(*arguments: Any, **named: Any) -> Raw:
            if self._dead:
                raise Crash
            left = [m for m in ("before", "after") if (m, site(name, arguments)) not in self._died_at]
            if EVENTS.name in site(name, arguments) or not left:
                return await call(*arguments, **named)
            self._dead = True
            self._died_at.add((left[0], site(name, arguments)))
            if left[0] == "after":
                await call(*arguments, **named)
            raise Crash

        return write


def site(name: str, arguments: tuple[Any, ...]) -> str:
    """A write as one crash point: of an object, or of a status with its phase and charges."""
    if name == "write_status":
        charges = [entry["count"] for entry in arguments[2]["restarts"]]
        return f"write_status {arguments[2]['phase']} {charges}"
    subject = arguments[0]
    if isinstance(subject, dict):
        return f"{name} {subject['kind']} {subject['metadata']['name']}"
    return f"{name} {subject.name} {arguments[2]}"


class Ears:
    """A watch of the jobs that feeds an operator as kopf does."""

    def __init__(self, heard: Any) -> None:
        self._heard = heard

    def changed(self, raw: Raw) -> None:
        self._heard("MODIFIED", raw)

    def deleted(self, raw: Raw) -> None:
        self._heard("DELETED", raw)

    def listed(self, namespace: str | None, present: set[tuple[str, str]], resource_version: str) -> None:
        pass


async def live_once(stage: Any, settings: OperatorSettings, cluster: MortalCluster) -> None:
    """One operator from its start to its death."""
    operator = Operator(
        cluster, Renderer(settings, KEY), namespaces=[stage.namespace], identity="mortal", poll_every_s=0.1
    )

    last = asyncio.Event()

    async def follow(heard: Any) -> None:
        watching = asyncio.create_task(Watch(stage.admin, RLJOBS, stage.namespace, Ears(heard)).run())
        try:
            await last.wait()
        finally:
            watching.cancel()

    with pytest.raises(Crash):
        await operator.run(follow, stop=asyncio.Event(), last=last)


async def test_a_job_completes_though_the_operator_dies_at_each_of_its_writes(
    stage: Any, settings: OperatorSettings
) -> None:
    died_at: set[tuple[str, str]] = set()

    async def die_and_live_again() -> None:
        while True:
            await live_once(stage, settings, MortalCluster(stage.admin, died_at))

    living = asyncio.create_task(die_and_live_again())
    try:
        await stage.submit()
        await stage.until_running()
        first = await stage.uids()
        await stage.end_pod("job-trainer-0", 1, message="out of luck", ago_s=120)

        async def replaced() -> bool:
            uid = (await stage.uids()).get("job-trainer-0")
            return uid is not None and uid != first["job-trainer-0"]

        await eventually(replaced, 30.0)
        await stage.until_running()
        await stage.complete()
        await stage.until_phase("Complete", deadline_s=30.0)
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
    made = Counter(name for name, _ in stage.creations)
    assert made["job-trainer-0"] == 2
    assert all(count == 1 for name, count in made.items() if name != "job-trainer-0"), made
    charged = {entry["role"]: entry["count"] for entry in (await stage.job())["status"]["restarts"]}
    assert charged == {"trainer": 1}, "charged once, however often the operator died at it"
    assert len(died_at) > 40
    sites = {site for _, site in died_at}
    assert {(moment, site) for moment in ("before", "after") for site in sites} == died_at
    assert sites >= {f"create Pod {name}" for name in made}
    assert sites >= {"delete Pod job-trainer-0", "write_status Complete [1]", "write_status Running [1]"}


async def test_a_restarted_operator_changes_no_pod_and_writes_nothing(stage: Any, run_operator: Any) -> None:
    """K6: quantities in other forms, ten forced reconciles, and a restart."""
    amounts = {"requests": {"cpu": "0.5", "memory": "1073741824"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}}
    other = {"requests": {"cpu": 1, "memory": "1.5Gi"}, "limits": {"cpu": "1.0", "memory": "1536Mi"}}
    await stage.submit(rollout={"replicas": 1, "resources": amounts}, trainer={"replicas": 1, "resources": other})
    async with run_operator() as operator:
        await stage.until_running()
        await eventually(lambda: len(operator.queue) == 0 or operator.queue.depth == 0)
        status = (await stage.job())["status"]
        before = await versions(stage)
        for _ in range(10):
            await force(operator, stage)
        assert await versions(stage) == before
    async with run_operator() as operator:
        await eventually(lambda: len(operator.jobs) == 1)
        for _ in range(3):
            await force(operator, stage)
        job = next(iter(operator.jobs))
        for child in operator.reconciler._actor.renderer.rendered(job).children:
            await stage.admin.apply(operator.reconciler._actor.renderer.child(job, child))
        assert (await stage.job())["status"] == status
        assert await versions(stage) == before


async def force(operator: Operator, stage: Any) -> None:
    """One more reconcile, and its end."""
    name = (stage.namespace, "job")
    rounds = operator.metrics.registry.get_sample_value("drumroll_operator_queue_wait_seconds_count")
    operator.queue.add(name)
    count = "drumroll_operator_reconcile_seconds_count"
    await eventually(lambda: (operator.metrics.registry.get_sample_value(count, {"result": "ok"}) or 0) > (rounds or 0))


async def versions(stage: Any) -> dict[str, str]:
    """resourceVersions of all that the job owns, and its own."""
    kinds = [kind for name, kind in KINDS.items() if name not in ("Event", "Lease")]
    found = {}
    for kind in kinds:
        for raw in await stage.all(kind):
            metadata = raw["metadata"]
            if metadata["name"] != "kube-root-ca.crt":
                found[f"{kind.name} {metadata['name']}"] = metadata["resourceVersion"]
    assert len(found) > 10
    assert any(key.startswith(PODS.name) for key in found)
    return found
