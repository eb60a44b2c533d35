"""The HTTP pages: alive, ready, metrics; and what each check sees."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest
from drumroll_operator.app import Operator
from drumroll_operator.cluster import ApiError
from drumroll_operator.health import Health, HealthServer
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from drumroll_operator.metrics import Metrics
from drumroll_operator.rendering import Renderer
from drumroll_operator.settings import OperatorSettings

from drumroll.clock import ManualClock
from drumroll.testing import eventually


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
async def server() -> AsyncIterator[tuple[Health, Metrics, str]]:
    health, metrics = Health(), Metrics()
    server = HealthServer(health, metrics.page)
    port = await server.start("127.0.0.1", 0)
    yield health, metrics, f"http://127.0.0.1:{port}"
    await server.stop()


async def test_what_is_dead_is_not_ready_either_but_not_the_other_way_round(
    server: tuple[Health, Metrics, str],
) -> None:
    health, _, url = server
    assert await asyncio.to_thread(get, f"{url}/healthz") == (200, "ok\n")
    health.ready_if("pods", lambda: "list pods: 403 Forbidden")
    assert (await asyncio.to_thread(get, f"{url}/healthz"))[0] == 200
    assert await asyncio.to_thread(get, f"{url}/readyz") == (503, "pods: list pods: 403 Forbidden\n")
    health.alive_if("watch", lambda: "nothing has happened for 300 s")
    assert (await asyncio.to_thread(get, f"{url}/healthz"))[0] == 503
    assert "watch" in (await asyncio.to_thread(get, f"{url}/readyz"))[1]


async def test_metrics_are_served_with_their_labels(server: tuple[Health, Metrics, str]) -> None:
    _, metrics, url = server
    metrics.requested("create", "pods", 201)
    metrics.reconciled("ok", 0.01)
    metrics.acted("CreatePod Quota", 0.02)
    metrics.gauge("jobs", "Jobs by phase.", ("phase",), lambda: [(("Running",), 3.0)])
    code, text = await asyncio.to_thread(get, f"{url}/metrics")
    assert code == 200
    assert 'drumroll_operator_api_requests_total{code="201",resource="pods",verb="create"} 1.0' in text
    assert 'drumroll_operator_jobs{phase="Running"} 3.0' in text
    assert 'drumroll_operator_action_seconds_count{action="CreatePod",result="Quota"} 1.0' in text
    assert "process_resident_memory_bytes" in text


async def test_an_operator_notices_what_hangs(settings: OperatorSettings) -> None:
    clock = ManualClock()
    cluster = MemoryCluster(MemoryApi(clock))
    operator = Operator(cluster, Renderer(settings, b"k" * 32), namespaces=["a", "b"], identity="x", clock=clock)
    assert operator.health.dead() == {}
    assert set(operator.health.unready()) == {"pods in a", "pods in b"}, "not listed yet"
    operator._rounds["a", "job"] = clock.monotonic()
    clock.advance(130.0)
    assert operator.health.dead() == {"reconcile": "a/job has been worked on for 130 s"}
    clock.advance(100.0)
    assert set(operator.health.dead()) == {"reconcile", "watch of pods in a", "watch of pods in b"}
    operator.resync.failure = ApiError("no", verb="list", resource="rljobs", code=403, reason="Forbidden")
    assert "list rljobs: 403" in operator.health.unready()["rljobs"]
    page = operator.metrics.page().decode()
    assert 'drumroll_operator_watch_age_seconds{watch="pods in a"} 230.0' in page


async def test_new_jobs_leave_workers_to_those_that_run(settings: OperatorSettings) -> None:
    operator = Operator(
        MemoryCluster(MemoryApi(ManualClock())), Renderer(settings, b"k" * 32), namespaces=[], identity="x", workers=4
    )
    begun: list[str] = []
    gate = asyncio.Event()

    async def slow(name: tuple[str, str]) -> float | None:
        begun.append(name[1])
        if name[1].startswith("new"):
            await gate.wait()
        return None

    operator.reconciler.reconcile = slow  # type: ignore[method-assign]
    operator.jobs.get = lambda name: name  # type: ignore[method-assign,assignment,return-value]
    operator.pods.has_any = lambda name: name[1].startswith("old")  # type: ignore[method-assign]
    for watch in operator.watches:
        watch.synced.set()
    workers = [asyncio.create_task(operator._work()) for _ in range(4)]
    for index in range(20):
        operator.queue.add(("team", f"new-{index}"))
    operator.queue.add(("team", "old-1"))
    await eventually(lambda: "old-1" in begun)
    assert begun[:2] == ["new-0", "new-1"]
    assert len(begun) == 3
    assert operator.depth == 18
    gate.set()
    await eventually(lambda: len(begun) == 21)
    assert [name for name in begun if name != "old-1"] == [f"new-{index}" for index in range(20)]
    assert operator.depth == 0
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
