"""Whose logs `drumroll logs` shows."""

from typing import Any

import pytest
from drumroll_cli.cluster.log_sources import last_words, nothing_to_show, role_of, sources
from drumroll_cli.cluster.objects import job_view, pod_line

from drumroll.errors import UserError

RUNNING = {"containerStatuses": [{"name": "", "state": {"running": {}}}]}


def pod(role: str, index: int = 0, **status: Any) -> dict[str, Any]:
    labels = {"drumroll.dev/role": role, "drumroll.dev/index": str(index)}
    name = f"small-{role}-{index}" if role in ("rollout", "trainer") else f"small-{role}"
    return {"metadata": {"name": name, "uid": name, "labels": labels}, "status": status or running(role)}


def running(name: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": name, "state": {"running": {}}}]}


PODS = [pod("rollout", 1), pod("rollout", 0), pod("trainer"), pod("store"), pod("scheduler")]
JOB = job_view({"metadata": {"name": "small"}, "status": {"phase": "Running"}})


def shown(pods: list[dict[str, Any]], role: str | None = None, name: str | None = None) -> list[str]:
    return [source.prefix for source in sources(pods, role=role, pod=name)]


def test_all_processes_are_shown_in_order() -> None:
    assert shown(PODS) == ["scheduler", "store", "trainer-0", "rollout-0", "rollout-1"]


def test_a_role_or_a_pod_may_be_chosen() -> None:
    assert shown(PODS, role="rollout") == ["rollout-0", "rollout-1"]
    assert shown(PODS, name="rollout-1") == ["rollout-1"]
    assert shown(PODS, name="small-rollout-1") == ["rollout-1"]


@pytest.mark.parametrize("state", [{"running": {}}, {"terminated": {"exitCode": 2}}], ids=["it runs", "it has failed"])
def test_an_init_container_speaks_for_its_pod(state: dict[str, Any]) -> None:
    waiting = {"containerStatuses": [{"name": "scheduler", "state": {"waiting": {"reason": "PodInitializing"}}}]}
    preparing = pod("scheduler", initContainerStatuses=[{"name": "prepare-data", "state": state}], **waiting)
    (source,) = sources([preparing], role=None, pod=None)
    assert (source.container, source.prefix) == ("prepare-data", "scheduler/prepare-data")


def test_a_pod_without_a_started_container_has_no_log() -> None:
    waiting = {"containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    pods = [pod("trainer", **waiting)]
    assert shown(pods) == []
    assert "says what it waits for" in nothing_to_show(JOB, [pod_line(item) for item in pods], role=None, pod=None)


def test_why_there_is_nothing_is_told() -> None:
    lines = [pod_line(item) for item in PODS]
    assert "has no pod rollout-9; it has scheduler, store" in nothing_to_show(JOB, lines, role=None, pod="rollout-9")
    assert "has no trainer pod now (Running)" in nothing_to_show(JOB, lines[:1], role="trainer", pod=None)
    assert "has no pods now (Running)" in nothing_to_show(JOB, [], role=None, pod=None)


def test_last_words_come_from_the_status() -> None:
    restarts = [
        {"role": "trainer", "count": 2, "lastReason": "Killed", "lastMessage": "signal 9\nin step 4"},
        {"role": "rollout", "count": 1, "lastReason": "OOMKilled", "lastMessage": "over 2Gi"},
        {"role": "scheduler", "count": 0},
    ]
    job = job_view({"metadata": {"name": "small"}, "status": {"restarts": restarts}})
    assert last_words(job, role="trainer") == [
        "trainer: 2 failures charged, last Killed",
        "  signal 9",
        "  in step 4",
    ]
    assert len(last_words(job, role=None)) == 5


def test_a_wrong_role_is_the_users_mistake() -> None:
    assert role_of(None) is None
    with pytest.raises(UserError, match="write one of scheduler, store, trainer, rollout"):
        role_of("worker")
