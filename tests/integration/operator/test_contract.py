"""What every Cluster does, the real API server's and the one in memory: the same answers and the same errors."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from drumroll_operator.cluster import CONFIG_MAPS, EVENTS, LEASES, PODS, RLJOBS, ApiError, Cluster, Raw
from drumroll_operator.failures import kind_of
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from drumroll_operator.observed import FailureKind
from drumroll_operator.pod_view import pod_view

from drumroll.clock import SystemClock

SPEC = {
    "model": {"path": "m"},
    "data": {"train": {"path": "t.jsonl"}, "maxPromptTokens": 8, "maxResponseTokens": 8},
    "reward": {"type": "math"},
}


@dataclass
class Place:
    cluster: Cluster
    namespace: str

    def config(self, name: str = "things", **data: str) -> Raw:
        metadata = {"name": name, "namespace": self.namespace, "labels": {"part": "test"}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def pod(self, name: str = "pod") -> Raw:
        labels = {"drumroll.dev/job": "job", "drumroll.dev/role": "rollout", "drumroll.dev/index": "1"}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        container = {"name": "rollout", "image": "localhost/x:1"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}

    def job(self, name: str = "job") -> Raw:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": RLJOBS.api_version, "kind": "RLJob", "metadata": metadata, "spec": SPEC}


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.cluster)])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "memory":
        return Place(MemoryCluster(MemoryApi(SystemClock())), "team")
    stage: Any = request.getfixturevalue("stage")
    return Place(stage.admin, stage.namespace)


async def refusal(call: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


async def test_a_second_create_of_a_name_is_refused_and_says_what_and_where(place: Place) -> None:
    created = await place.cluster.create(place.config(a="1"))
    assert created["metadata"]["uid"]
    error = await refusal(place.cluster.create(place.config(a="2")))
    assert (error.verb, error.resource, error.name) == ("create", "configmaps", "things")
    assert (error.code, error.reason) == (409, "AlreadyExists")
    assert kind_of(error) is FailureKind.NAME_TAKEN
    assert "create configmaps things" in str(error)


async def test_applying_the_same_manifest_again_writes_nothing(place: Place) -> None:
    first = await place.cluster.apply(place.config(a="1"))
    second = await place.cluster.apply(place.config(a="1"))
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    third = await place.cluster.apply(place.config(a="2"))
    assert third["data"] == {"a": "2"}
    assert int(third["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_an_object_of_another_controller_is_not_taken_over(place: Place) -> None:
    def owned(uid: str) -> Raw:
        owner = {"apiVersion": RLJOBS.api_version, "kind": "RLJob", "name": "job", "uid": uid, "controller": True}
        raw = place.config(a="1")
        raw["metadata"]["ownerReferences"] = [owner]
        return raw

    first = await place.cluster.create(place.job())
    await place.cluster.create(owned(first["metadata"]["uid"]))
    error = await refusal(place.cluster.apply(owned("11111111-2222-3333-4444-555555555555")))
    assert kind_of(error) is FailureKind.NAME_TAKEN


async def test_what_is_missing_is_404(place: Place) -> None:
    for call in (
        place.cluster.get(PODS, place.namespace, "none"),
        place.cluster.delete(PODS, place.namespace, "none"),
        place.cluster.write_status(place.namespace, "none", {}, resource_version="1"),
    ):
        error = await refusal(call)
        assert error.code == 404


async def test_a_stale_status_is_a_conflict_and_a_fresh_one_replaces_the_whole(place: Place) -> None:
    job = await place.cluster.create(place.job())
    version = job["metadata"]["resourceVersion"]
    first = await place.cluster.write_status(
        place.namespace, "job", {"phase": "Pending", "step": 3, "message": "x"}, resource_version=version
    )
    assert first["status"]["step"] == 3
    error = await refusal(
        place.cluster.write_status(place.namespace, "job", {"phase": "Running"}, resource_version=version)
    )
    assert error.code == 409
    assert kind_of(error) is FailureKind.CONFLICT
    second = await place.cluster.write_status(
        place.namespace, "job", {"phase": "Running"}, resource_version=first["metadata"]["resourceVersion"]
    )
    assert second["status"].get("message") is None
    assert second["status"]["phase"] == "Running"
    assert second["metadata"]["generation"] == job["metadata"]["generation"]


async def test_a_delete_spares_another_object_of_the_same_name(place: Place) -> None:
    created = await place.cluster.create(place.pod())
    error = await refusal(
        place.cluster.delete(PODS, place.namespace, "pod", uid="11111111-2222-3333-4444-555555555555")
    )
    assert error.code == 409
    assert "UID in" in error.message
    answer = await place.cluster.delete(PODS, place.namespace, "pod", uid=created["metadata"]["uid"], grace_s=0)
    assert answer["kind"] in ("Pod", "Status")
    assert (await refusal(place.cluster.get(PODS, place.namespace, "pod"))).code == 404


async def test_a_watch_tells_what_a_list_did_not(place: Place) -> None:
    await place.cluster.create(place.pod("first"))
    pages = [page async for page in place.cluster.list(PODS, place.namespace, labels="drumroll.dev/job")]
    names = [raw["metadata"]["name"] for page in pages for raw in page.items]
    assert names == ["first"]
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        version = pages[-1].resource_version
        async for event in place.cluster.watch(
            PODS, place.namespace, resource_version=version, labels="drumroll.dev/job"
        ):
            if event["type"] in ("ADDED", "DELETED"):
                seen.append((event["type"], pod_view(event["object"]).name))
            if len(seen) == 3:
                return

    following = asyncio.create_task(follow())
    plain = place.pod("without")
    del plain["metadata"]["labels"]
    await place.cluster.create(plain)
    await place.cluster.create(place.pod("second"))
    await place.cluster.delete(PODS, place.namespace, "first", grace_s=0)
    await place.cluster.delete(PODS, place.namespace, "second", grace_s=0)
    await asyncio.wait_for(following, 20)
    assert seen == [("ADDED", "second"), ("DELETED", "first"), ("DELETED", "second")]


async def test_a_lease_is_updated_against_its_version(place: Place) -> None:
    metadata = {"name": "lease", "namespace": place.namespace}
    lease = await place.cluster.create({"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata})
    mine = await place.cluster.update({**lease, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}})
    assert mine["spec"]["holderIdentity"] == "a"
    error = await refusal(place.cluster.update({**lease, "spec": {"holderIdentity": "b"}}))
    assert error.code == 409


async def test_an_event_gets_a_series_by_a_merge_patch(place: Place) -> None:
    job = await place.cluster.create(place.job())
    regarding = {"kind": "RLJob", "apiVersion": RLJOBS.api_version, "name": "job", "namespace": place.namespace}
    event = {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": "job.1", "namespace": place.namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "drumroll.dev/operator",
        "reportingInstance": "test",
        "action": "Reconcile",
        "reason": "Ready",
        "regarding": regarding | {"uid": job["metadata"]["uid"]},
        "note": "all is well",
        "type": "Normal",
    }
    await place.cluster.create(event)
    series = {"count": 3, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}
    patched = await place.cluster.merge(EVENTS, place.namespace, "job.1", {"series": series})
    assert patched["series"]["count"] == 3


async def test_deleting_a_config_map_is_done_at_once(place: Place) -> None:
    await place.cluster.create(place.config(a="1"))
    await place.cluster.delete(CONFIG_MAPS, place.namespace, "things")
    assert (await refusal(place.cluster.get(CONFIG_MAPS, place.namespace, "things"))).code == 404


async def test_history_that_is_gone_is_410() -> None:
    cluster = MemoryCluster(MemoryApi(SystemClock()), oldest=5)

    async def watch() -> None:
        async for _ in cluster.watch(PODS, "team", resource_version="1"):
            return

    error = await refusal(watch())
    assert (error.code, error.reason) == (410, "Expired")


@pytest.mark.cluster
async def test_a_server_that_is_not_there_is_an_error_with_code_0(stage: Any) -> None:
    stage.admin._configuration.host, right = "https://127.0.0.1:1", stage.admin._configuration.host
    try:
        error = await refusal(stage.admin.get(PODS, stage.namespace, "pod"))
    finally:
        stage.admin._configuration.host = right
    assert error.code == 0
    assert kind_of(error) is FailureKind.UNAVAILABLE
    assert "get pods pod" in str(error)
