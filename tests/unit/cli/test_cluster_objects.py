"""Jobs, pods and Events as people look at them, made from raw objects."""

from typing import Any

import pytest
from drumroll_cli.cluster.objects import age, event_line, in_order, job_view, parse_time, pod_line, span

from drumroll.api.editing import edited
from drumroll.api.status import PolicyLag, RLJobStatus, RoleRestarts

JOB: dict[str, Any] = {
    "metadata": {"name": "small", "namespace": "research", "uid": "u1", "generation": 2},
    "spec": {"maxPolicyLag": 4, "rollout": {"replicas": 3}},
}


def pod(role: str = "rollout", index: int = 0, **status: Any) -> dict[str, Any]:
    labels = {"drumroll.dev/job": "small", "drumroll.dev/role": role, "drumroll.dev/index": str(index)}
    name = f"small-{role}-{index}" if role in ("rollout", "trainer") else f"small-{role}"
    container = {"name": role, "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [container], "nodeName": "node-1"},
        "status": {"phase": "Running", **status},
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7_300, "2h1m"), (200_000, "2d7h"), (-5, "0s")]
)
def test_a_span_is_short(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_times_of_any_precision_are_read() -> None:
    assert parse_time("2026-01-01T00:00:00Z") == parse_time("2026-01-01T00:00:00.000000000Z")
    assert age(None, 0.0) == "-"


def test_a_job_that_nobody_has_looked_at_is_pending() -> None:
    job = job_view(JOB)
    assert (job.phase, job.seen, job.conditions, job.wanted_replicas) == ("Pending", False, (), 3)


def test_a_job_is_seen_once_the_operator_knows_its_newest_spec() -> None:
    assert not job_view(edited(JOB, {"status.observedGeneration": 1})).seen
    assert job_view(edited(JOB, {"status.observedGeneration": 2})).seen


def test_every_field_of_a_status_is_read() -> None:
    lag = PolicyLag(min=1, mean=1.5, max=3)
    restarts = RoleRestarts(role="trainer", count=2, last_reason="Killed", last_message="signal 9")
    status = RLJobStatus(
        phase="Running",
        step=3,
        steps=9,
        version=4,
        policy_lag=lag,
        samples=40,
        eta_seconds=60,
        gpus=8,
        restarts=[restarts],
    )
    job = job_view({**JOB, "status": status.to_wire()})
    assert (job.phase, job.step, job.steps, job.version, job.samples) == ("Running", 3, 9, 4, 40)
    assert (job.eta_s, job.gpus) == (60, 8)
    assert (job.lag and (job.lag.least, job.lag.mean, job.lag.most)) == (1, 1.5, 3)
    assert [(item.role, item.count, item.reason, item.message) for item in job.restarts] == [
        ("trainer", 2, "Killed", "signal 9")
    ]


@pytest.mark.parametrize(
    ("status", "state", "why"),
    [
        ({}, "Running", ""),
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted", "low on memory"),
        (
            {
                "containerStatuses": [
                    {"name": "x", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
                ]
            },
            "ImagePullBackOff",
            "no",
        ),
        (
            {"initContainerStatuses": [{"name": "prepare-data", "state": {"running": {}}}]},
            "Init:prepare-data",
            "",
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "p", "state": {"terminated": {"exitCode": 2, "reason": "Error", "message": "row 7"}}}
                ]
            },
            "Init:Error",
            "row 7",
        ),
        (
            {"containerStatuses": [{"name": "x", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "OOMKilled",
            "exit code 137",
        ),
        (
            {"containerStatuses": [{"name": "x", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]},
            "Completed",
            "",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}],
            },
            "Unschedulable",
            "0/3 nodes are available",
        ),
    ],
)
def test_a_pod_says_its_state_as_kubectl_does(status: dict[str, Any], state: str, why: str) -> None:
    line = pod_line(pod(**status))
    assert (line.state, line.why) == (state, why)


def test_a_pod_that_is_deleted_is_terminating() -> None:
    assert pod_line(edited(pod(), {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"})).state == "Terminating"


def test_pods_stand_by_role_and_index() -> None:
    pods = [pod("rollout", 10), pod("rollout", 2), pod("trainer"), pod("store"), pod("scheduler")]
    assert [line.short for line in in_order([pod_line(item) for item in pods])] == [
        *("scheduler", "store", "trainer-0"),
        *("rollout-2", "rollout-10"),
    ]
    assert pod_line(pod()).gpus == 2


def test_an_event_in_series_tells_its_count_and_last_time() -> None:
    event = event_line(
        {
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "reason": "OOMKilled",
            "type": "Warning",
            "message": "over its limit",
            "series": {"count": 7, "lastObservedTime": "2026-01-01T00:01:00.000000Z"},
            "involvedObject": {"name": "small"},
        }
    )
    assert (event.count, event.about) == (7, "small")
    assert event.at == parse_time("2026-01-01T00:01:00Z")
