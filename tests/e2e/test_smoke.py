"""A job of the replay engine, from `kubectl apply` to its end, as `kubectl get rlj` shows it."""

from collections.abc import Callable

import pytest
from kit.jobs import ClusterJob
from kit.kube import conditions

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CONTRACT = {
    "Accepted",
    "Admitted",
    "StreamReady",
    "SchedulerReady",
    "TrainerReady",
    "RolloutReady",
    "WeightsInSync",
    "Ready",
    "Progressing",
    "Suspended",
    "Degraded",
    "Complete",
    "Failed",
}


def test_a_job_runs_to_its_end_and_shows_itself_on_the_way(make_job: Callable[..., ClusterJob]) -> None:
    job = make_job(steps=8, rollout={"engine": {"replay": {"stepSeconds": 0.2}}}).apply()
    job.wait_for_condition("Ready")
    (row,) = job.table()
    assert set(row) == {"NAME", "PHASE", "STEP", "VERSION", "LAG", "ROLLOUT", "GPUS", "AGE"}
    assert (row["NAME"], row["PHASE"], row["ROLLOUT"]) == ("job", "Running", "1/1")
    job.wait_for_step(2)
    (row,) = job.table("-o", "wide")
    assert {"STEPS", "SAMPLES", "ETA", "REASON", "MODEL", "MESSAGE"} <= set(row)
    assert int(row["STEP"]) >= 2
    assert (row["STEPS"], row["MODEL"]) == ("8", "tiny/model")
    for pod in job.pods():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [volume for volume in pod["spec"]["volumes"] if "hostPath" in volume]

    job.complete()
    ended = job.get()
    assert ended["status"]["observedGeneration"] == ended["metadata"]["generation"]
    assert set(conditions(ended)) >= CONTRACT
    assert all(c["observedGeneration"] == 1 and c["reason"] for c in conditions(ended).values())
    assert not [pod for pod in job.pods() if pod["status"]["phase"] == "Running"]
