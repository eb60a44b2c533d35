"""What stays of an ended job, for how long; and that an end survives what others write."""

import json
from typing import Any

from drumroll_operator.actions import CreatePod
from drumroll_operator.cluster import PODS
from drumroll_operator.laboratory import SPEC, Laboratory
from drumroll_operator.rehearsal import NAMESPACE


def laboratory(**changes: Any) -> Laboratory:
    """A job with all parts ready and many steps."""
    lab = Laboratory({**SPEC, "steps": 100, **changes})
    lab.settle()
    return lab


def test_after_success_ended_pods_stay_an_hour_and_the_store_goes_at_once() -> None:
    lab = Laboratory()
    lab.settle(seconds=1.0, train=True)
    lab.settle()
    assert lab.names("store") == []
    lab.clock.now += 3590.0
    lab.settle()
    assert len(lab.names()) == 4
    lab.clock.now += 20.0
    lab.settle()
    assert lab.names() == []
    assert lab.status.phase == "Complete"


def test_after_failure_the_store_stays_as_long_as_asked_and_the_job_goes_last() -> None:
    keep = {"podsSeconds": 100, "storeSeconds": 50, "jobSeconds": 200}
    lab = laboratory(cleanup={"onFailure": keep})
    lab.kubelet.finish(lab.pod("trainer"), 2, message="no")
    lab.settle()
    assert lab.names() == ["demo-store", "demo-trainer-0"]
    lab.clock.now += 51.0
    lab.settle()
    assert lab.names() == ["demo-trainer-0"]
    lab.clock.now += 50.0
    lab.settle()
    assert lab.names() == []
    lab.clock.now += 100.0
    lab.settle()
    assert ("RLJob", NAMESPACE, "demo") not in lab.api.objects


def test_the_scheduler_outlives_the_workers_of_a_job_that_failed() -> None:
    lab = laboratory()
    lab.kubelet.finish(lab.pod("rollout"), 2, message="no")
    lab.operator.catch_up()
    lab.operator.reconcile()
    assert lab.pod("trainer")["metadata"].get("deletionTimestamp")
    assert "deletionTimestamp" not in lab.pod("scheduler")["metadata"]
    lab.settle()
    assert "demo-scheduler" not in lab.names()


def test_workers_of_a_complete_job_get_a_moment_to_end_by_themselves_and_no_more() -> None:
    lab = laboratory()
    word = json.dumps({"phase": "Complete", "step": 100, "steps": 100})
    lab.kubelet.finish(lab.pod("scheduler"), 0, message=word)
    lab.settle()
    assert lab.status.phase == "Complete"
    assert all("deletionTimestamp" not in pod["metadata"] for pod in lab.pods("trainer") + lab.pods("rollout"))
    lab.kubelet.finish(lab.pod("trainer"), 0)
    lab.clock.now += 16.0
    lab.settle()
    assert lab.names() == ["demo-scheduler", "demo-trainer-0"], "what ended by itself keeps its logs"


# -- statuses that others wrote --------------------------------------------------------------------------------------


def test_an_end_survives_a_status_that_cannot_be_read_whole() -> None:
    lab = Laboratory()
    lab.settle(seconds=1.0, train=True)

    def spoil(raw: dict[str, Any]) -> None:
        raw["status"] |= {"step": -3, "aFieldOfTomorrow": {"x": 1}}

    lab.api.edit(type(PODS)("RLJob", "drumroll.dev/v1alpha1", "rljobs"), NAMESPACE, "demo", spoil)
    lab.start_operator()
    lab.settle()
    assert lab.job["status"]["phase"] == "Complete"
    assert not [action for action in lab.operator.done if isinstance(action, CreatePod)]
