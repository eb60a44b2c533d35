"""What is read from raw pods, and that odd ones are read as well."""

from typing import Any

import pytest
from drumroll_operator.observed import Exit, PodPhase
from drumroll_operator.pod_view import pod_view
from drumroll_operator.pods import pod as render
from drumroll_operator.resolve import resolve
from hypothesis import given
from hypothesis import strategies as st

TIME = "2026-01-01T00:00:00Z"
AT = 1767225600.0


def test_a_rendered_pod_reads_as_what_it_was_rendered_for(make_job: Any, settings: Any) -> None:
    limits = {"limits": {"nvidia.com/gpu": 2, "memory": "8Gi", "cpu": 2}}
    job = make_job(trainer={"replicas": 2, "resources": limits})
    raw = render(resolve(job, settings), settings, "trainer", 1, set_number=3)
    raw["metadata"] |= {"uid": "u1", "creationTimestamp": TIME}
    view = pod_view(raw)
    assert (view.name, view.uid, view.job_uid) == ("tokens-trainer-1", "u1", job.metadata.uid)
    assert (view.role, view.index, view.set_number) == ("trainer", 1, 3)
    assert (view.gpus, view.memory_limit, view.created) == (2, "8Gi", AT)
    assert view.config.startswith("tokens-config-")
    assert view.phase is PodPhase.PENDING
    assert view.live


@pytest.fixture
def raw() -> dict[str, Any]:
    labels = {"drumroll.dev/job": "job", "drumroll.dev/uid": "j1", "drumroll.dev/role": "rollout"}
    owner = {"uid": "j1", "controller": True, "kind": "RLJob"}
    metadata = {"name": "job-rollout-0", "namespace": "team", "uid": "p1", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "rollout"}]}, "status": {}}


def test_a_pod_that_another_controls_is_not_ours(raw: dict[str, Any]) -> None:
    assert pod_view(raw).job_uid == "j1"
    raw["metadata"]["ownerReferences"][0]["uid"] = "j2"
    assert pod_view(raw).job_uid == ""
    del raw["metadata"]["ownerReferences"]
    assert pod_view(raw).job_uid == ""


def test_the_end_of_a_failed_init_container_is_the_pods_end(raw: dict[str, Any]) -> None:
    end = {"exitCode": 2, "reason": "Error", "message": "no such column", "finishedAt": TIME}
    raw["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "prepare-data", "state": {"terminated": end}}],
        "containerStatuses": [{"name": "rollout", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    assert pod_view(raw).exit == Exit(2, "Error", "no such column", AT)


def test_the_reason_of_a_waiting_init_container_comes_first(raw: dict[str, Any]) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    raw["status"] = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "prepare-data", "state": {"waiting": waiting}}],
        "containerStatuses": [{"name": "rollout", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    view = pod_view(raw)
    assert (view.waiting, view.waiting_message) == ("ImagePullBackOff", "no such image")


def test_evictions_disruptions_and_scheduling_are_read(raw: dict[str, Any]) -> None:
    raw["metadata"]["deletionTimestamp"] = TIME
    raw["spec"]["nodeName"] = "n1"
    raw["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "low on memory",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": TIME},
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "pressure"},
        ],
    }
    view = pod_view(raw)
    assert (view.reason, view.message, view.disruption) == ("Evicted", "low on memory", "TerminationByKubelet")
    assert (view.node, view.bound_at, view.delete_by, view.exit) == ("n1", AT, AT, None)
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    ]
    assert pod_view(raw).unschedulable == "0/3 nodes"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    ["phase", "reason", "conditions", "containerStatuses", "initContainerStatuses", "containers", "volumes", "labels"]
)


@given(
    metadata=st.dictionaries(_FIELDS, _JSON),
    spec=st.dictionaries(_FIELDS, _JSON),
    status=st.dictionaries(_FIELDS, _JSON),
)
def test_no_pod_is_too_odd_to_be_read(metadata: Any, spec: Any, status: Any) -> None:
    view = pod_view({"metadata": metadata, "spec": spec, "status": status})
    assert view.role is None
