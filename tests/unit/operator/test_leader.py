"""One leads at a time, whatever happens to requests and clocks; and a lost Lease is noticed before another acts."""

import asyncio
from typing import Any

import pytest
from drumroll_operator.cluster import LEASES, ApiError
from drumroll_operator.leader import Leader
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.clock import ManualClock
from drumroll.testing import eventually


def lease(api: MemoryApi) -> Any:
    return api.get(LEASES, "drumroll", "operator")


@pytest.fixture
def api() -> MemoryApi:
    return new_api()


def new_api() -> MemoryApi:
    api = MemoryApi(ManualClock())
    metadata = {"name": "operator", "namespace": "drumroll"}
    api.create({"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata})
    return api


def candidate(api: MemoryApi, name: str) -> Leader:
    return Leader(MemoryCluster(api), "drumroll", "operator", name, clock=api.clock, retry_s=0.0)


async def test_a_free_lease_is_taken_and_given_back(api: MemoryApi) -> None:
    first = candidate(api, "first")
    await first.acquire()
    assert first.leads
    spec = lease(api)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("first", 15, 1)
    await first.release()
    assert not first.leads
    second = candidate(api, "second")
    assert await second._try()
    assert lease(api)["spec"]["leaseTransitions"] == 2


async def test_a_held_lease_is_waited_for_a_whole_term_of_silence(api: MemoryApi) -> None:
    clock: Any = api.clock
    first, second = candidate(api, "first"), candidate(api, "second")
    assert await first._try()
    assert not await second._try()
    clock.advance(14.0)
    assert await first._try()
    assert not await second._try()
    clock.advance(14.0)
    assert not first.leads, "who has not renewed in time may not act, though the Lease is still its own"
    assert not await second._try()
    clock.advance(1.1)
    assert await second._try()
    assert not await first._try()
    assert first._holder() == "second"


async def test_a_lost_answer_does_not_lose_the_lease(api: MemoryApi) -> None:
    first = candidate(api, "first")
    await first.acquire()

    def lose(verb: str, resource: str, name: str) -> None:
        api.before = None
        lost = dict(lease(api))
        api.update({**lost, "spec": {**lost["spec"], "renewTime": "now"}})
        raise ApiError("reset", verb=verb, resource=resource)

    api.before = lose
    assert not await first._try()
    await eventually(first._try)
    assert first.leads


async def test_whoever_cannot_renew_stops(api: MemoryApi) -> None:
    clock: Any = api.clock
    first = candidate(api, "first")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    api.forbidden = {("update", "leases"), ("get", "leases")}
    await asyncio.sleep(0.01)
    assert not keeping.done()
    clock.advance(10.0)
    await asyncio.wait_for(keeping, 5)
    assert not first.leads
    assert "leases" in str(first.failure)


async def test_whoever_finds_another_holder_stops_at_once(api: MemoryApi) -> None:
    first = candidate(api, "first")
    await first.acquire()
    api.merge(LEASES, "drumroll", "operator", {"spec": {"holderIdentity": "thief"}})
    await asyncio.wait_for(first.keep(), 5)
    assert not first.leads


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["first", "second", "third", "time"]), st.sampled_from([0.5, 3.0, 9.0, 16.0])),
        max_size=40,
    ),
    failing=st.sets(st.integers(0, 60), max_size=12),
)
def test_two_never_lead_at_the_same_time(steps: list[tuple[str, float]], failing: set[int]) -> None:
    api = new_api()
    clock: Any = api.clock
    candidates = {name: candidate(api, name) for name in ("first", "second", "third")}
    calls = 0

    def sometimes(verb: str, resource: str, name: str) -> None:
        nonlocal calls
        calls += 1
        if calls in failing:
            raise ApiError("no answer", verb=verb, resource=resource)

    api.before = sometimes

    async def play() -> None:
        for who, seconds in steps:
            if who == "time":
                clock.advance(seconds)
            else:
                await candidates[who]._try()
            assert sum(leader.leads for leader in candidates.values()) <= 1

    asyncio.run(play())
