"""Refusals of an API server as sentences that say what to do."""

import json
from typing import Any

import pytest
from drumroll_cli.cluster.answers import Asked, ClusterRefusal, ClusterUnreachable, error_of
from drumroll_cli.cluster.paths import core_path, job_path, jobs_path
from hypothesis import given
from hypothesis import strategies as st

from drumroll.errors import DrumrollError


def told(code: int, path: str = jobs_path("research"), **status: Any) -> str:
    body = json.dumps({"kind": "Status", "apiVersion": "v1", "code": code, **status})
    return str(error_of(code, body, Asked(path, "default", "kind")))


def test_a_forbidden_call_names_who_what_and_where() -> None:
    message = (
        'rljobs.drumroll.dev is forbidden: User "ann" cannot create resource "rljobs" in API group "drumroll.dev" '
        'in the namespace "research"'
    )
    text = told(403, message=message, reason="Forbidden")
    assert text.startswith("ann may not create rljobs in namespace research: ")
    assert "docs/rbac.md" in text


def test_a_quota_is_not_a_missing_right() -> None:
    message = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, limited: 4'
    text = told(403, message=message)
    assert text.startswith("namespace research has no quota left (gpus, requested: requests.nvidia.com/gpu=8")


def test_a_missing_definition_is_not_a_missing_job() -> None:
    error = error_of(404, "404 page not found\n", Asked(jobs_path("research"), "research", "kind"))
    assert "does not know RLJobs: install the chart" in str(error)
    details = {"name": "small", "group": "drumroll.dev", "kind": "rljobs"}
    text = told(404, job_path("research", "small"), message="not found", details=details)
    assert text == "there is no RLJob small in namespace research: `drumroll status` lists the jobs there"


def test_a_missing_namespace_is_named() -> None:
    text = told(404, message='namespaces "nope" not found', details={"name": "nope", "kind": "namespaces"})
    assert text == "there is no namespace nope: create it, or choose another one by -n"


def test_a_broken_rule_reads_as_offline() -> None:
    causes = [
        {
            "reason": "FieldValueInvalid",
            "message": "Invalid value: 5: replicas is above maxReplicas: write a number between them",
            "field": "spec.rollout.replicas",
        },
        {"message": 'Invalid value: {"a":1}: a job ends by steps or by epochs', "field": "spec.epochs"},
        {"message": "Required value", "field": "spec.model.path"},
    ]
    text = told(422, message="RLJob is invalid", details={"causes": causes})
    assert text.splitlines() == [
        "spec.rollout.replicas is 5: replicas is above maxReplicas: write a number between them",
        "spec.epochs: a job ends by steps or by epochs",
        "spec.model.path: Required value",
    ]


def test_unknown_fields_come_one_a_line() -> None:
    message = 'RLJob cannot be handled: strict decoding error: unknown field "spec.a", unknown field "spec.b"'
    assert told(400, message=message).splitlines() == ['unknown field "spec.a"', 'unknown field "spec.b"']


def test_a_server_that_is_busy_is_no_mistake_of_the_user() -> None:
    for code in (429, 500, 503):
        error = error_of(code, "overloaded", Asked(jobs_path("a"), "a", "kind"))
        assert isinstance(error, ClusterUnreachable)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (jobs_path("a"), "rljobs"),
        (jobs_path(None), "rljobs"),
        (job_path("a", "x", "scale"), "rljobs/scale"),
        (core_path("pods", "a", "x", "log"), "pods/log"),
        (core_path("nodes"), "nodes"),
    ],
)
def test_a_path_says_its_resource(path: str, kind: str) -> None:
    assert Asked(path, "a", "kind").kind == kind


KEYS = ["message", "details", "name", "kind", "causes", "field"]


@given(
    st.sampled_from([400, 401, 403, 404, 405, 409, 410, 422]),
    st.one_of(
        st.text(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        ).map(json.dumps),
    ),
)
def test_any_refusal_has_a_sentence(code: int, body: str) -> None:
    error: DrumrollError = error_of(code, body, Asked(jobs_path("a"), "a", "kind"))
    assert isinstance(error, ClusterRefusal)
    assert error.code == code
