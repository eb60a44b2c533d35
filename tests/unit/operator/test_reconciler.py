"""The loop's body on a cluster in memory: status before actions, failures kept, and nothing without the Lease."""

from collections.abc import Callable
from typing import Any

import pytest
from drumroll_operator.acting import Actor, NotLeading
from drumroll_operator.actions import CreatePod, DeletePod, Plan, Record
from drumroll_operator.cluster import PODS, RLJOBS, ApiError
from drumroll_operator.job_cache import JobCache
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from drumroll_operator.observed import FailureKind, Observed
from drumroll_operator.pod_cache import PodCache
from drumroll_operator.progress import ProgressPoller
from drumroll_operator.reconciler import Reconciler
from drumroll_operator.recorder import Recorder
from drumroll_operator.rendering import Renderer
from drumroll_operator.settings import OperatorSettings

from drumroll.api.status import RLJobStatus
from drumroll.clock import ManualClock

NAME = ("team", "job")
SPEC = {
    "model": {"path": "m"},
    "data": {"train": {"path": "t.jsonl"}, "maxPromptTokens": 8, "maxResponseTokens": 8},
    "reward": {"type": "math"},
    "weights": {"volume": {"persistentVolumeClaim": {"claimName": "files"}}},
}


class Setting:
    """One job, and plans as the test gives them."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.api = MemoryApi(ManualClock())
        self.leads = True
        self.seen: list[Observed] = []
        self.next: Plan = Plan()
        clock, cluster = self.api.clock, MemoryCluster(self.api)
        self.jobs = JobCache(lambda name: None)
        self.pods = PodCache(lambda name: None)
        poller = ProgressPoller(lambda name: None, clock=clock)
        renderer = Renderer(settings, b"k" * 32)
        recorder = Recorder(cluster, "test", clock=clock)
        actor = Actor(cluster, self.pods, renderer, poller, recorder, lambda: self.leads)
        self.reconciler = Reconciler(self.jobs, actor, clock=clock, planner=self._plan)
        metadata = {"name": "job", "namespace": "team"}
        job = {"apiVersion": RLJOBS.api_version, "kind": "RLJob", "metadata": metadata, "spec": SPEC}
        self.jobs.changed(self.api.create(job))
        self.api.calls.clear()

    def _plan(self, observed: Observed) -> Plan:
        self.seen.append(observed)
        return self.next

    def writes(self) -> list[str]:
        return [f"{verb} {resource}" for verb, resource, _ in self.api.calls if verb not in ("get", "list", "watch")]

    async def reconcile(self, *actions: Any, status: RLJobStatus | None = None) -> float | None:
        self.next = Plan(actions, status, 42.0)
        return await self.reconciler.reconcile(NAME)


@pytest.fixture
def setting(settings: OperatorSettings) -> Setting:
    return Setting(settings)


POD = CreatePod("rollout", 0, "job-rollout-0")


async def test_the_status_is_written_before_the_actions(setting: Setting) -> None:
    requeue = await setting.reconcile(POD, status=RLJobStatus(phase="Pending"))
    assert setting.writes() == ["patch rljobs/status", "create pods"]
    assert requeue == 0.0, "after actions there is reason to plan again"
    assert [pod.name for pod in setting.pods.of_job(NAME)] == ["job-rollout-0"], "the answer is seen at once"
    assert await setting.reconcile() == 42.0
    assert setting.seen[-1].job.status.phase == "Pending"
    assert setting.seen[-1].status_written == setting.api.clock.wall()


@pytest.mark.parametrize("code", [409, 0])
async def test_nothing_is_done_if_the_status_cannot_be_written(setting: Setting, code: int) -> None:
    def fail(verb: str, resource: str, name: str) -> None:
        if resource == "rljobs/status":
            raise ApiError("no", verb=verb, resource=resource, code=code, reason="Conflict" if code else "")

    setting.api.before = fail
    if code:
        assert await setting.reconcile(POD, status=RLJobStatus(phase="Pending")) == 0.0
    else:
        with pytest.raises(ApiError):
            await setting.reconcile(POD, status=RLJobStatus(phase="Pending"))
        assert "rljobs/status" in str(setting.reconciler.status_failure)
    assert "create pods" not in setting.writes()


async def test_a_job_that_went_meanwhile_is_forgotten(setting: Setting) -> None:
    setting.api.delete(RLJOBS, "team", "job")
    assert await setting.reconcile(POD, status=RLJobStatus(phase="Pending")) == 0.0
    assert setting.jobs.get(NAME) is None
    assert await setting.reconcile(POD) is None
    assert "create pods" not in setting.writes()


async def test_a_failure_ends_the_round_and_is_told_to_the_next_plan_until_it_is_mended(setting: Setting) -> None:
    setting.api.forbidden = {("create", "pods")}
    second = CreatePod("rollout", 1, "job-rollout-1")
    for count in (1, 2):
        assert await setting.reconcile(POD, second) == 0.0
        await setting.reconcile()
        (failure,) = setting.seen[-1].failures
        assert (failure.kind, failure.verb, failure.resource, failure.count) == (
            FailureKind.FORBIDDEN,
            "create",
            "pods",
            count,
        )
    assert setting.writes() == ["create pods", "create pods"]
    setting.api.forbidden = set()
    await setting.reconcile(POD, second)
    await setting.reconcile()
    assert setting.seen[-1].failures == ()
    assert len(setting.seen[-1].pods) == 2


async def test_without_the_lease_nothing_is_written(setting: Setting) -> None:
    setting.leads = False
    for change in ({"status": RLJobStatus(phase="Pending")}, {}):
        with pytest.raises(NotLeading):
            await setting.reconcile(POD, **change)
    assert setting.writes() == []


async def test_a_pod_that_exists_is_taken_into_view_and_one_of_another_is_a_failure(setting: Setting) -> None:
    await setting.reconcile(POD)
    first = setting.pods.of_job(NAME)[0]
    setting.pods.gone(("team", first.name), "another-uid")
    setting.pods._drop(("team", first.name))
    assert await setting.reconcile(POD) == 0.0
    assert setting.pods.of_job(NAME)[0].uid == first.uid
    raw = setting.api.get(PODS, "team", first.name)
    setting.api.remove(raw)
    raw["metadata"]["ownerReferences"][0]["uid"] = raw["metadata"]["labels"]["drumroll.dev/uid"] = "an-older-job"
    setting.api.create(raw)
    await setting.reconcile(POD)
    await setting.reconcile()
    assert [failure.kind for failure in setting.seen[-1].failures] == [FailureKind.NAME_TAKEN]
    assert [pod.job_uid for pod in setting.seen[-1].pods] == ["an-older-job"]


async def test_deleting_what_is_gone_or_another_is_success(setting: Setting) -> None:
    await setting.reconcile(POD)
    pod = setting.pods.of_job(NAME)[0]
    await setting.reconcile(DeletePod(pod.name, "an-older-uid"))
    assert setting.pods.of_job(NAME)[0].live
    setting.api.remove(setting.api.get(PODS, "team", pod.name))
    await setting.reconcile(DeletePod(pod.name, pod.uid))
    await setting.reconcile()
    assert setting.seen[-1].pods == ()
    assert setting.seen[-1].failures == ()


async def test_an_event_alone_is_no_reason_to_plan_again(setting: Setting) -> None:
    told: list[str] = []
    note: Callable[[str, float], None] = lambda what, seconds: told.append(what)  # noqa: E731 - short
    setting.reconciler._note = note
    assert await setting.reconcile(Record("Normal", "Ready", "all is well")) == 42.0
    assert told == ["Record ok"]
