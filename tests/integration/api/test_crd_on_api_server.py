"""The CRD on a real API server: accepted, same defaults and same refusals as offline, columns, scaling."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumroll.api.editing import edited
from drumroll.api.lifetime import refused_changes
from drumroll.api.loading import load_jobs, parse_jobs
from drumroll.api.reference import EXAMPLE
from drumroll.api.spec import RLJob
from drumroll.api.status import RLJobStatus
from drumroll.api.tree import placed_rules

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit" / "api"
VIOLATIONS: list[dict[str, Any]] = yaml.safe_load((UNIT / "violations.yaml").read_text())
POOLS: dict[str, list[Any]] = yaml.safe_load((UNIT / "pools.yaml").read_text())
EXAMPLES = {
    "documented": EXAMPLE,
    **{
        path.name: path.read_text()
        for path in (
            *(ROOT / "examples").rglob("*.y*ml"),
            UNIT / "cases/K6_quantities.yaml",
            UNIT / "cases/S6_env.yaml",
        )
        if "kind: RLJob" in path.read_text()
    },
}
MINIMAL = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"path": "models/tiny"},
        "data": {"train": {"path": "data/train.jsonl"}},
        "reward": {"type": "math"},
    },
}


SERVERS_OWN_WORDS = re.compile(r'^[A-Z][a-z ]+: (("([^"\\]|\\.)*"|[-0-9.e]+|true|false): )?')


def offline(job: dict[str, Any]) -> list[str]:
    return sorted(problem.message for problem in parse_jobs(json.dumps(job), "job.yaml").problems)


def refusals(answer: dict[str, Any]) -> list[str]:
    """Sentences of an error status, without the server's own words before them; empty for success."""
    if answer["kind"] != "Status":
        return []
    causes = answer["details"].get("causes", [{"message": answer["message"]}])
    return sorted(SERVERS_OWN_WORDS.sub("", cause["message"]) for cause in causes)


def paths(data: Any, prefix: str = "") -> set[str]:
    if isinstance(data, dict) and data:
        return {path for key, value in data.items() for path in paths(value, f"{prefix}.{key}")}
    if isinstance(data, list):
        return {path for index, value in enumerate(data) for path in paths(value, f"{prefix}[{index}]")} or {prefix}
    return {prefix}


def test_the_crd_is_established_and_structural(api_server: Any) -> None:
    answer = api_server.kubectl("get", "crd", "rljobs.drumroll.dev", "-o", "json")
    conditions = {entry["type"]: entry["status"] for entry in json.loads(answer.stdout)["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gets_the_same_defaults_as_offline(name: str, api_server: Any) -> None:
    applied = api_server.kubectl("apply", "--validate=strict", "-f", "-", text=EXAMPLES[name])
    assert applied.returncode == 0, applied.stderr
    for job in load_jobs(EXAMPLES[name]):
        answer = api_server.kubectl("get", "rlj", job.metadata.name, "-o", "json")
        served = json.loads(answer.stdout)
        assert paths(served["spec"]) == paths(job.to_wire()["spec"])
        assert load_jobs(yaml.safe_dump(served))[0].spec == job.spec


@pytest.mark.parametrize("case", VIOLATIONS, ids=[case["rule"] for case in VIOLATIONS])
def test_a_broken_rule_is_refused_with_the_same_sentence(case: dict[str, Any], api_server: Any) -> None:
    job = edited(MINIMAL, case["changes"])
    assert refusals(api_server.create(job)) == offline(job)


FULL = {
    "metadata.name": "full",
    "spec.rollout.podTemplatePatch": POOLS["spec.rollout.podTemplatePatch"][3],
    "spec.trainer.podTemplatePatch": {
        "metadata": {"labels": {"team": "rl"}},
        "spec": {**POOLS["spec.rollout.podTemplatePatch"][4]["spec"], "tolerations": [{"operator": "Exists"}]},
    },
    "spec.volumes": [{"name": "shared", "mountPath": "/shared", "configMap": {"name": "c"}}],
    "spec.securityContext": {"runAsUser": 1000},
    "spec.steps": 5,
    "spec.env": [{"name": "A", "value": "1"}],
    "spec.reward.memory": "1Gi",
    "spec.trainer.resources": {"requests": {"cpu": "1000m"}, "limits": {"cpu": 2, "memory": "1Gi"}},
}

TASKS = {
    "metadata.name": "tasks",
    "spec.data.train": {"tasks": [{"name": "leg_counting", "config": {"n": 3}}]},
    "spec.reward.type": "tasks",
}


def changed(api_server: Any, start: dict[str, Any], change: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What the server, and what the offline check, say of a change to a job of that name that lives."""
    name = start["metadata"]["name"]
    created = api_server.create(start, dry_run=False)
    assert created["kind"] == "RLJob" or created["reason"] == "AlreadyExists", created
    new = edited(start, change)
    answer = api_server.request("GET", f"/{name}", None)
    body = {**new, "metadata": {**new["metadata"], "resourceVersion": answer["metadata"]["resourceVersion"]}}
    answer = api_server.request("PUT", f"/{name}?dryRun=All&fieldValidation=Strict", body)
    old_spec, new_spec = (RLJob.model_validate(job).spec for job in (start, new))
    return refusals(answer), sorted(message for _, message in refused_changes(old_spec, new_spec))


@pytest.mark.parametrize(
    ("start", "change", "count"),
    [
        ({}, {"spec.model.path": "models/other"}, 1),
        ({}, {"spec.data.eval": {"path": "data/eval.jsonl"}}, 1),
        ({}, {"spec.data.maxPromptTokens": 5}, 1),
        ({}, {"spec.seed": 1, "spec.maxPolicyLag": 3, "spec.lagPolicy": "drop"}, 3),
        ({}, {"spec.algorithm.groupSize": 4}, 1),
        ({}, {"spec.rollout.threads": 3}, 1),
        ({}, {"spec.reward": {"type": "function", "function": "m:f"}}, 2),
        ({}, {"spec.rollout.podTemplatePatch": {}, "spec.scheduler.image": "r/i:1"}, 2),
        ({}, {"spec.volumes": FULL["spec.volumes"]}, 1),
        (TASKS, {"spec.data.train.tasks": [{"name": "leg_counting", "config": {"n": 4}}]}, 1),
        (FULL, {"spec.volumes": None}, 1),
        (FULL, {"spec.trainer.podTemplatePatch": None}, 1),
        (FULL, {"spec.trainer.podTemplatePatch.spec.affinity": {}}, 1),
        (FULL, {"spec.trainer.podTemplatePatch.metadata.labels.team": "other"}, 1),
        (FULL, {"spec.rollout.podTemplatePatch.spec.initContainers": []}, 1),
        (FULL, {"spec.trainer.resources.limits.memory": "2Gi"}, 1),
        (FULL, {"spec.trainer.resources.requests.memory": "1Gi"}, 1),
        (FULL, {"spec.securityContext.fsGroup": 1}, 1),
        (FULL, {"spec.env": []}, 1),
        (FULL, {"spec.steps": None}, 1),
        (FULL, {"spec.steps": None, "spec.epochs": 1}, 2),
        (FULL, {"spec.trainer.resources": {"requests": {"cpu": 1}, "limits": {"cpu": "2000m", "memory": "1024Mi"}}}, 0),
        (FULL, {"spec.reward.memory": 1 << 30}, 0),
        (FULL, {"spec.suspend": True, "spec.steps": 7, "spec.targetPolicyLag": 0, "spec.rollout.replicas": 3}, 0),
        (FULL, {"spec.rollout.minReplicas": 1, "spec.rollout.maxReplicas": 8}, 0),
        (FULL, {"spec.cleanup.onSuccess.jobSeconds": 5, "spec.rollout.maxReplicas": 8}, 0),
        (FULL, {"spec.pendingDeadlineSeconds": 5, "spec.activeDeadlineSeconds": 5, "spec.stallDeadlineSeconds": 5}, 0),
        (FULL, {f"spec.{role}.restartPolicy": {"maxRestarts": 1} for role in ("rollout", "trainer", "scheduler")}, 0),
    ],
)  # fmt: skip
def test_what_cannot_change_is_refused(
    start: dict[str, Any], change: dict[str, Any], count: int, api_server: Any
) -> None:
    job = edited(MINIMAL, {"metadata.name": "fixed", **start})
    said, told = changed(api_server, job, change)
    assert said == told
    assert len(said) == count


def test_unknown_fields_are_refused(api_server: Any) -> None:
    text = yaml.safe_dump(edited(MINIMAL, {"spec.algorithm.group_size": 4}))
    applied = api_server.kubectl("apply", "--validate=strict", "-f", "-", text=text)
    assert applied.returncode != 0
    assert 'unknown field "spec.algorithm.group_size"' in applied.stderr


@pytest.mark.parametrize(
    ("place", "field"),
    [
        ("spec", "hostNetwork"),
        ("spec", "serviceAccountName"),
        ("spec", "securityContext"),
        ("spec.volumes", "hostPath"),
        ("spec.initContainers", "securityContext"),
    ],
)
def test_powers_of_pods_are_unknown_fields(place: str, field: str, api_server: Any) -> None:
    item = {"name": "a", "image": "i"} if "init" in place else {"name": "a", "emptyDir": {}}
    value = {"path": "/"} if field == "hostPath" else {"privileged": True} if "Context" in field else True
    patch = edited({}, {place: [item | {field: value}]} if "." in place else {f"{place}.{field}": value})
    text = yaml.safe_dump(edited(MINIMAL, {"spec.trainer.podTemplatePatch": patch}))
    applied = api_server.kubectl("apply", "--validate=strict", "-f", "-", text=text)
    assert applied.returncode != 0
    assert "unknown field" in applied.stderr
    assert field in applied.stderr


def test_variables_that_are_set_twice_are_refused(api_server: Any) -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    (message,) = refusals(api_server.create(edited(MINIMAL, {"spec.env": twice})))
    assert '"name":"A"' in message


def test_kubectl_scales_within_the_bounds(api_server: Any) -> None:
    changes = {"metadata.name": "scaled", "spec.rollout": {"replicas": 2, "maxReplicas": 4}}
    api_server.create(edited(MINIMAL, changes), dry_run=False)
    assert api_server.kubectl("scale", "rlj/scaled", "--replicas=4").returncode == 0
    answer = api_server.kubectl("get", "rlj", "scaled", "-o", "jsonpath={.spec.rollout.replicas}")
    assert answer.stdout == "4"
    refused = api_server.kubectl("scale", "rlj/scaled", "--replicas=5")
    assert refused.returncode != 0
    assert "replicas is above maxReplicas" in refused.stderr


def test_columns_show_the_status(api_server: Any) -> None:
    api_server.create(edited(MINIMAL, {"metadata.name": "shown"}), dry_run=False)
    status = {
        "phase": "Running",
        "step": 17,
        "steps": 500,
        "version": 18,
        "policyLag": {"min": 0, "mean": 1.5, "max": 4},
        "samples": 4352,
        "etaSeconds": 5400,
        "gpus": 8,
        "rollout": {"replicas": 4, "ready": 3, "draining": 1, "summary": "3/4", "selector": "drumroll.dev/job=shown"},
        "trainer": {"replicas": 1, "ready": 1, "setNumber": 2},
        "restarts": [
            {
                "role": "rollout",
                "count": 2,
                "windowStart": "2026-01-01T00:00:00Z",
                "lastReason": "OOMKilled",
                "lastMessage": "killed at its memory limit of 8Gi",
                "lastTime": "2026-01-01T00:00:00Z",
                "chargedUids": ["a", "b"],
            }
        ],
        "config": "shown-config-01234567",
        "jobDir": "/var/lib/drumroll/default/shown-1",
        "startTime": "2026-01-01T00:00:00Z",
        "lastProgressTime": "2026-01-01T00:00:00.25Z",
        "suspendedSeconds": 1.5,
        "message": "training",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "AllReady",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    answer = api_server.request("PATCH", "/shown/status", {"status": status}, "application/merge-patch+json")
    assert answer["kind"] == "RLJob", answer
    assert {key: answer["status"][key] for key in status} == status
    assert RLJobStatus.model_validate(answer["status"]).restarts[0].charged_uids == ["a", "b"]
    head, row = api_server.kubectl("get", "rlj", "shown").stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "VERSION", "LAG", "ROLLOUT", "GPUS", "AGE"]
    assert row.split()[:7] == ["shown", "Running", "17", "18", "1.5", "3/4", "8"]
    wide = api_server.kubectl("get", "rlj", "shown", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[8:] == ["STEPS", "SAMPLES", "ETA", "REASON", "MODEL", "MESSAGE"]
    assert wide[1].split()[8:] == ["500", "4352", "5400", "AllReady", "models/tiny", "training"]
    scale = json.loads(api_server.kubectl("get", "rlj", "shown", "--subresource=scale", "-o", "json").stdout)
    assert scale["status"] == {"replicas": 4, "selector": "drumroll.dev/job=shown"}


SENTENCES = {rule.message.partition(": write")[0] for _, rule in placed_rules() if rule.cel is not None}


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(st.lists(st.sampled_from(sorted(POOLS)), max_size=6, unique=True))
    return {field: draw(st.sampled_from(POOLS[field])) for field in fields}


@given(changes())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_server_and_offline_checks_agree(api_server: Any, change: dict[str, Any]) -> None:
    job = edited(MINIMAL, change)
    answer, told = api_server.create(job), offline(job)
    if all(message.partition(": write")[0] in SENTENCES for message in told):
        assert refusals(answer) == told
    else:  # A field is wrong by itself: the server says so in words of its own, and checks no rule then.
        assert refusals(answer)
    if not told:
        (entry,) = parse_jobs(json.dumps(job), "job.yaml").jobs
        assert paths(answer["spec"]) == paths(entry.job.to_wire()["spec"])
