"""What is sent to create a job, and how one that is there already differs."""

from typing import Any

import pytest
from drumroll_cli.cluster.cancel import consequences
from drumroll_cli.cluster.objects import job_view
from drumroll_cli.cluster.overriding import overridden
from drumroll_cli.cluster.submission import Difference, body_of, differences, exists_already, namespace_of
from drumroll_cli.cluster.waiting import change_line

from drumroll.api.loading import LoadedJob, parse_jobs
from drumroll.api.problems import InvalidJobs
from drumroll.errors import JobError, UserError

JOB = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: small, labels: {team: a}}
spec:
  model: {path: models/tiny}
  data: {train: {path: data/train.jsonl}}
  reward: {type: math}
"""


def entry(text: str = JOB) -> LoadedJob:
    (found,) = parse_jobs(text, "job.yaml").jobs
    return found


def test_the_body_holds_what_was_written_and_no_default() -> None:
    assert body_of(entry().job, "research") == {
        "apiVersion": "drumroll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "small", "labels": {"team": "a"}, "namespace": "research"},
        "spec": {
            "model": {"path": "models/tiny"},
            "data": {"train": {"path": "data/train.jsonl"}},
            "reward": {"type": "math"},
        },
    }


def test_two_namespaces_are_one_too_many() -> None:
    job = entry(JOB.replace("{name: small,", "{name: small, namespace: other,")).job
    assert namespace_of(job, None, "default") == "other"
    assert namespace_of(job, "research", "default") == "research"
    assert namespace_of(entry().job, None, "default") == "default"
    with pytest.raises(UserError, match="write -n other"):
        body_of(job, "research")


def test_overrides_change_what_they_name_and_nothing_else() -> None:
    body = body_of(overridden(entry(), ("rollout.replicas=4", "spec.steps=7")).job, "a")
    assert body["spec"]["rollout"] == {"replicas": 4}
    assert body["spec"]["steps"] == 7
    assert "sampling" not in body["spec"]
    assert overridden(entry(), ()) == entry()


@pytest.mark.parametrize("override", ["steps", "=3", "steps=0"])
def test_a_wrong_override_is_the_users_mistake(override: str) -> None:
    with pytest.raises((JobError, InvalidJobs)):
        overridden(entry(), (override,))


def test_defaults_are_no_difference() -> None:
    job = entry().job
    assert differences({"spec": job.spec.to_wire()}, job) == []
    assert differences({"spec": body_of(job, "a")["spec"]}, job) == []


def test_differences_say_what_may_change_while_the_job_lives() -> None:
    there: dict[str, Any] = body_of(overridden(entry(), ("seed=3", "rollout.replicas=2")).job, "a")
    found = differences(there, entry().job)
    assert found == [
        Difference("spec.rollout.replicas", 2, 1, fixed=False),
        Difference("spec.seed", 3, 0, fixed=True),
    ]
    assert "give the new job another name" in exists_already("small", "Running", found, "job.yaml")
    assert "kubectl apply -f job.yaml" in exists_already("small", "Running", found[:1], "job.yaml")
    assert "it has ended" in exists_already("small", "Failed", found, "job.yaml")


def test_a_spec_of_another_version_cannot_be_compared() -> None:
    assert differences({"spec": {"model": 3}}, entry().job) is None
    assert "give the new job another name" in exists_already("small", "Running", None, "job.yaml")


def test_a_wait_tells_steps_and_reasons() -> None:
    raw = {
        "metadata": {"name": "small"},
        "spec": {"steps": 80, "rollout": {"replicas": 2}},
        "status": {"phase": "Pending", "message": "quota"},
    }
    assert change_line(job_view(raw)) == "small  Pending  step 0/80  rollout 0/2  quota"


def test_cancelling_says_what_is_lost_and_what_stays() -> None:
    raw = {
        "metadata": {"name": "small"},
        "spec": {"steps": 80},
        "status": {"phase": "Running", "step": 3, "jobDir": "/d"},
    }
    text = consequences(job_view(raw))
    assert text.splitlines()[0] == "small is Running after step 3 of 80."
    assert "drumroll suspend small" in text
    assert text.endswith("Files stay on its volume in /d.")
