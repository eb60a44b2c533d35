"""Lists, watches and the caches that they feed, over broken connections and lost history."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from drumroll_operator.cluster import PODS, RLJOBS, ApiError, Page, Raw
from drumroll_operator.job_cache import JobCache
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from drumroll_operator.pod_cache import PodCache
from drumroll_operator.resync import Resync
from drumroll_operator.watch import Watch
from drumroll_operator.work_queue import WorkQueue

from drumroll.clock import ManualClock, SystemClock
from drumroll.testing import eventually


class Flaky:
    """A cluster whose watches break after so many events."""

    def __init__(self, inner: MemoryCluster, *, every: int) -> None:
        self._inner = inner
        self._every = every
        self.lists = 0
        self.forbidden: ApiError | None = None

    async def list(self, *arguments: Any, **named: Any) -> AsyncIterator[Page]:
        self.lists += 1
        if self.forbidden is not None:
            raise self.forbidden
        async for page in self._inner.list(*arguments, **named):
            yield page

    async def watch(self, *arguments: Any, **named: Any) -> AsyncIterator[Raw]:
        seen = 0
        async for event in self._inner.watch(*arguments, **named):
            yield event
            seen += 1
            if seen == self._every:
                raise ApiError("connection reset", verb="watch", resource="pods")


def pod(name: str, job: str = "job") -> Raw:
    metadata = {"name": name, "namespace": "team", "labels": {"drumroll.dev/job": job}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


@asynccontextmanager
async def running(watch: Watch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def names(cache: PodCache, job: str = "job") -> list[str]:
    return [view.name for view in cache.of_job(("team", job))]


async def test_every_change_arrives_though_the_connection_breaks_all_the_time() -> None:
    api = MemoryApi(SystemClock())
    api.create(pod("a"))
    told: list[Any] = []
    cache = PodCache(told.append)
    watch = Watch(Flaky(MemoryCluster(api), every=1), PODS, None, cache, labels="drumroll.dev/job")  # type: ignore[arg-type]
    async with running(watch):
        await eventually(watch.synced.is_set)
        assert names(cache) == ["a"]
        api.create(pod("b"))
        api.create(pod("c", job="other"))
        api.delete(PODS, "team", "a")
        await eventually(lambda: names(cache) == ["b"] and names(cache, "other") == ["c"])
        assert set(told) == {("team", "job"), ("team", "other")}


async def test_what_went_while_history_was_lost_is_gone_from_the_cache() -> None:
    api = MemoryApi(SystemClock())
    for name in ("a", "b"):
        api.create(pod(name))
    cluster = MemoryCluster(api)
    flaky = Flaky(cluster, every=1)
    cache = PodCache(lambda name: None)
    watch = Watch(flaky, PODS, None, cache, labels="drumroll.dev/job")  # type: ignore[arg-type]
    async with running(watch):
        await eventually(lambda: names(cache) == ["a", "b"])
        flaky.forbidden = ApiError("down", verb="list", resource="pods")
        cluster.oldest = 10_000
        api.create(pod("c"))
        await eventually(lambda: flaky.lists >= 2)
        api.delete(PODS, "team", "a")
        flaky.forbidden, cluster.oldest = None, 0
        await eventually(lambda: names(cache) == ["b", "c"], 15.0)
        assert watch.failure is None


async def test_a_watch_that_is_refused_says_why_and_is_not_dead() -> None:
    clock = ManualClock()
    flaky = Flaky(MemoryCluster(MemoryApi(clock)), every=1)
    flaky.forbidden = ApiError("no", verb="list", resource="pods", code=403, reason="Forbidden")
    watch = Watch(flaky, PODS, None, PodCache(lambda name: None), clock=clock)  # type: ignore[arg-type]
    clock.advance(500.0)
    assert watch.idle_s == watch.age_s == 500.0, "nothing happens: the task may hang"
    async with running(watch):
        await eventually(lambda: watch.failure is not None)
        assert "list pods: 403 Forbidden" in str(watch.failure)
        assert watch.idle_s == 0.0
        assert watch.age_s == 500.0
        assert not watch.synced.is_set()


def test_the_newest_state_of_a_pod_wins_whoever_brings_it() -> None:
    api = MemoryApi(ManualClock())
    told: list[Any] = []
    cache = PodCache(told.append)
    first = api.create(pod("a"))
    cache.changed(copy.deepcopy(first))
    newer = api.set_status(first, phase="Running", podIP="10.0.0.1")
    cache.changed(newer)
    cache.changed(first)
    assert cache.of_job(("team", "job"))[0].phase == "Running"
    assert cache.address(("team", "a")) == "10.0.0.1"
    assert len(told) == 2
    cache.gone(("team", "a"), first["metadata"]["uid"])
    cache.changed(newer)
    assert names(cache) == [], "the dead stay dead, though news of their life arrive late"
    again = api.create(pod("b"))
    api.remove(again)
    second = api.create(pod("b"))
    cache.changed(second)
    cache.gone(("team", "b"), again["metadata"]["uid"])
    assert names(cache) == ["b"]


def test_a_pod_made_after_a_list_is_not_taken_for_gone_by_it() -> None:
    api = MemoryApi(ManualClock())
    cache = PodCache(lambda name: None)
    cache.changed(api.create(pod("old")))
    version = str(api.version)
    cache.changed(api.create(pod("new")))
    cache.listed("elsewhere", set(), version)
    assert names(cache) == ["new", "old"]
    cache.listed(None, set(), version)
    assert names(cache) == ["new"]


SPEC = {
    "model": {"path": "m"},
    "data": {"train": {"path": "t.jsonl"}, "maxPromptTokens": 8, "maxResponseTokens": 8},
    "reward": {"type": "math"},
}


def job(name: str = "job", **spec: Any) -> Raw:
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": RLJOBS.api_version, "kind": "RLJob", "metadata": metadata, "spec": {**SPEC, **spec}}


def test_a_job_that_does_not_parse_is_refused_with_the_field(caplog: pytest.LogCaptureFixture) -> None:
    api = MemoryApi(ManualClock())
    cache = JobCache(lambda name: None)
    cache.changed(api.create(job(steps=-1, colour="red")))
    found = cache.get(("team", "job"))
    assert found is not None
    assert found.view.spec is None
    assert found.refusal is not None
    assert "spec.colour" in found.refusal.message
    assert "spec.steps" in found.refusal.message


def test_an_own_write_is_seen_before_the_watch_tells_of_it() -> None:
    api = MemoryApi(ManualClock())
    cache = JobCache(lambda name: None)
    raw = api.create(job())
    cache.changed(raw)
    parsed = cache.get(("team", "job"))
    written = api.write_status("team", "job", {"phase": "Pending"}, resource_version=raw["metadata"]["resourceVersion"])
    cache.changed(written)
    cache.changed(raw)
    found = cache.get(("team", "job"))
    assert found is not None
    assert parsed is not None
    assert found.view.status.phase == "Pending"
    assert found.model is parsed.model, "a spec is parsed once for each generation"


async def test_a_dead_watch_of_the_jobs_is_found_and_healed_by_lists() -> None:
    clock = ManualClock()
    api = MemoryApi(clock)
    queue: WorkQueue[tuple[str, str]] = WorkQueue(clock=clock)
    jobs = JobCache(queue.add)
    resync = Resync(MemoryCluster(api), jobs, queue, namespaces=[None], clock=clock)
    first = api.create(job("first"))
    resync.heard("ADDED", first)
    await resync.look(None)
    assert resync.missing_s == 0.0
    second = api.create(job("second"))
    await resync.look(None)
    assert jobs.get(("team", "second")) is not None, "the list heals what the watch misses"
    clock.advance(100.0)
    await resync.look(None)
    assert resync.missing_s == 100.0
    resync.heard("ADDED", second)
    assert resync.missing_s == 0.0
    api.delete(RLJOBS, "team", "first")
    await resync.look(None)
    assert jobs.get(("team", "first")) is None


async def test_a_watch_that_ends_at_once_is_not_begun_anew_at_once() -> None:
    class Mute(Flaky):
        watches = 0

        async def watch(self, *arguments: Any, **named: Any) -> AsyncIterator[Raw]:
            self.watches += 1
            nothing: list[Raw] = []
            for event in nothing:
                yield event

    api = MemoryApi(SystemClock())
    mute = Mute(MemoryCluster(api), every=1)
    watch = Watch(mute, PODS, None, PodCache(lambda name: None))  # type: ignore[arg-type]
    async with running(watch):
        await eventually(lambda: mute.watches >= 2)
        assert mute.watches == 2
        assert watch.failure is None
