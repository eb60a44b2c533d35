"""What `drumroll doctor` says of a cluster, and of what a job asks of it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from drumroll_cli.cluster.checks import RIGHTS, cluster_lines
from drumroll_cli.cluster.findings import ClaimSeen, Level, Line, NodeSeen, OperatorSeen, Survey, Unseen
from drumroll_cli.cluster.job_checks import job_lines, secrets_of
from drumroll_cli.cluster.sightings import field_paths, gpus_of, holder, jobs_seen, labels_of, node
from drumroll_cli.cluster.survey import own_fields

from drumroll.api.editing import edited
from drumroll.api.loading import parse_jobs
from drumroll.api.spec import RLJob

FIELDS = own_fields()
SETTINGS = {
    "images": {role: {"reference": f"registry/{role}:1"} for role in ("scheduler", "rollout", "trainer")},
    "defaultClaim": "shared",
    "imagePullSecrets": [{"name": "pull"}],
    "podSecurity": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
}
OPERATOR = OperatorSeen("drumroll", "drumroll-operator", "0.1.0", 2, 2, "pod-a", SETTINGS)
SHARED = ClaimSeen("shared", "Bound", ("ReadWriteMany",), "nfs", "1Ti")
GOOD = Survey(
    context="kind",
    server="https://127.0.0.1:6443",
    namespace="research",
    version="v1.37.2",
    served_fields=FIELDS,
    operators=[OPERATOR],
    jobs_seen=True,
    namespace_labels={"pod-security.kubernetes.io/enforce": "restricted"},
    namespace_terminating=False,
    rights=dict.fromkeys(RIGHTS, True),
    nodes=[NodeSeen("a", True, 8), NodeSeen("b", True, 8)],
    gpus_taken=0,
    claims=[SHARED],
    quotas=[],
    limit_ranges=False,
    secrets={"pull": True},
)
SPEC: dict[str, Any] = {
    "model": {"path": "models/tiny"},
    "data": {"train": {"path": "data/train.jsonl"}},
    "reward": {"type": "math"},
}


def job(**changes: Any) -> RLJob:
    wire = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "small"}, "spec": SPEC}
    changed = edited(wire, {f"spec.{path.replace('__', '.')}": value for path, value in changes.items()})
    loaded = parse_jobs(json.dumps(changed), "job")
    assert not loaded.problems, loaded.problems
    return loaded.jobs[0].job


def lines_of(seen: Survey, *jobs: RLJob) -> list[Line]:
    return [*cluster_lines(seen, FIELDS), *(line for each in jobs for line in job_lines(each, seen))]


def bad(lines: Sequence[Line]) -> list[tuple[str, str]]:
    return [(line.level.value, line.subject) for line in lines if line.level is not Level.OK]


def only(lines: Sequence[Line]) -> Line:
    (line,) = [line for line in lines if line.level is not Level.OK]
    return line


def test_a_good_cluster_takes_a_plain_job() -> None:
    assert bad(lines_of(GOOD, job())) == []


def test_everything_that_is_not_ok_says_what_to_do() -> None:
    nothing = Unseen("ann may not list things in the whole cluster")
    blind = replace(
        GOOD, operators=nothing, jobs_seen=None, nodes=nothing, gpus_taken=nothing, claims=nothing, quotas=nothing
    )
    blind = replace(blind, namespace_labels=nothing, rights=nothing, secrets={"pull": nothing}, served_fields=nothing)
    lines = lines_of(blind, job(rollout__resources={"limits": {"nvidia.com/gpu": 1}}))
    assert all(line.advice for line in lines if line.level is not Level.OK)
    assert [line for line in lines if line.level is Level.FAIL] == [
        Line(Level.FAIL, "RLJob", nothing.why, "install the chart: docs/install.md")
    ]


@pytest.mark.parametrize(
    ("changes", "level", "subject", "part"),
    [
        ({"version": "v1.30.4"}, "warn", "API server", "1.33"),
        ({"served_fields": FIELDS - {"spec.suspend"}}, "fail", "RLJob", "lacks spec.suspend"),
        ({"served_fields": FIELDS | {"spec.newer"}}, "warn", "RLJob", "spec.newer"),
        ({"operators": []}, "fail", "operator", "no installation"),
        ({"operators": [replace(OPERATOR, available=0)]}, "fail", "operator", "no ready pod"),
        ({"operators": [replace(OPERATOR, holder="")]}, "fail", "operator", "nobody holds its Lease"),
        ({"operators": [replace(OPERATOR, version="9.9.9")]}, "warn", "operator", "version 9.9.9"),
        ({"operators": [OPERATOR, replace(OPERATOR, namespace="other")]}, "fail", "operator", "at once"),
        (
            {"operators": [replace(OPERATOR, settings={"watchNamespaces": ["a"]})]},
            "warn",
            "operator",
            "does not look after",
        ),
        ({"namespace_labels": None}, "fail", "namespace", "there is no namespace"),
        ({"namespace_terminating": True}, "fail", "namespace", "being deleted"),
        ({"rights": {**dict.fromkeys(RIGHTS, True), RIGHTS[0]: False}}, "fail", "rights", "may not create rljobs"),
        ({"rights": {**dict.fromkeys(RIGHTS, True), RIGHTS[-1]: False}}, "warn", "rights", "Events"),
        ({"nodes": [NodeSeen("a", False, 8)]}, "fail", "nodes", "none of 1 nodes"),
        ({"claims": []}, "warn", "volume", "no claim"),
        ({"claims": [replace(SHARED, phase="Pending")]}, "warn", "volume", "shared (ReadWriteMany, Pending)"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_named(changes: dict[str, Any], level: str, subject: str, part: str) -> None:
    line = only(lines_of(replace(GOOD, **changes)))
    assert (line.level, line.subject) == (level, subject)
    assert part in line.found + line.advice


@pytest.mark.parametrize(
    ("changes", "level", "part"),
    [
        ({"claims": []}, "fail", "there is no claim shared"),
        ({"claims": [replace(SHARED, phase="Lost")]}, "fail", "lost its volume"),
        ({"claims": [replace(SHARED, phase="Pending")]}, "warn", "is Pending, of class nfs"),
        ({"claims": [replace(SHARED, modes=("ReadWriteOnce",))]}, "warn", "pods on other nodes"),
        ({"claims": [replace(SHARED, modes=("ReadWriteOncePod",))]}, "fail", "a single pod"),
        ({"claims": [replace(SHARED, modes=("ReadOnlyMany",))]}, "fail", "weights cannot be written"),
    ],
)
def test_the_claim_must_serve_all_pods(changes: dict[str, Any], level: str, part: str) -> None:
    line = only([*job_lines(job(), replace(GOOD, **changes))])
    assert line.level == level
    assert part in line.found


def test_one_node_needs_no_shared_volume() -> None:
    claims = [replace(SHARED, modes=("ReadWriteOnce",))]
    assert bad([*job_lines(job(), replace(GOOD, claims=claims, nodes=[NodeSeen("a", True, 0)]))]) == []


def test_a_job_without_any_claim_is_told_so() -> None:
    none = replace(OPERATOR, settings={**SETTINGS, "defaultClaim": ""})
    line = only([*job_lines(job(), replace(GOOD, operators=[none]))])
    assert (line.level, line.subject) == ("fail", "small: volume")


GPUS = {"limits": {"nvidia.com/gpu": 4}}


@pytest.mark.parametrize(
    ("changes", "taken", "level", "part"),
    [
        ({"rollout__replicas": 3}, 0, None, ""),
        ({"rollout__replicas": 3}, 8, "warn", "16 wanted (trainer 1 x 4, rollout 3 x 4), 8 of 16 free"),
        ({"rollout__replicas": 4}, 0, "fail", "20 wanted (trainer 1 x 4, rollout 4 x 4), 16 there"),
        ({"trainer__resources": {"limits": {"nvidia.com/gpu": 16}}}, 0, "fail", "no node has more than 8"),
    ],
)
def test_gpus_are_counted(changes: dict[str, Any], taken: int, level: str | None, part: str) -> None:
    asked = {"rollout__resources": GPUS, "rollout__tensorParallelSize": 4, "trainer__resources": GPUS} | changes
    found = [line for line in job_lines(job(**asked), replace(GOOD, gpus_taken=taken)) if line.subject == "small: GPUs"]
    assert [line.level for line in found if line.level != "ok"] == ([level] if level else [])
    assert part in found[0].found


def test_taints_of_gpu_nodes_are_seen() -> None:
    nodes = [NodeSeen("a", True, 8, (("team", "NoSchedule"),)), NodeSeen("cpu", True, 0)]
    seen = replace(GOOD, nodes=nodes)
    wants = {"rollout__resources": {"limits": {"nvidia.com/gpu": 1}}}
    line = only([*job_lines(job(**wants), seen)])
    assert "tainted with team" in line.found
    patch = {"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}}
    assert bad([*job_lines(job(**wants, rollout__podTemplatePatch=patch), seen)]) == []


def test_absolute_paths_need_a_mount() -> None:
    line = only([*job_lines(job(model={"path": "/models/tiny"}), GOOD)])
    assert (line.level, line.subject) == ("fail", "small: model.path")
    volumes = [{"name": "models", "mountPath": "/models", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert bad([*job_lines(job(model={"path": "/models/tiny"}, volumes=volumes), GOOD)]) == []


def test_image_volumes_need_a_new_cluster() -> None:
    volumes = [{"name": "model", "mountPath": "/models", "image": {"reference": "registry/model:1"}}]
    asked = job(model={"path": "/models/tiny"}, volumes=volumes)
    assert bad([*job_lines(asked, GOOD)]) == []
    assert bad([*job_lines(asked, replace(GOOD, version="v1.34.1"))]) == [("warn", "small: volume model")]


def quota(**hard: str) -> dict[str, Any]:
    amounts = {name.replace("__", "."): amount for name, amount in hard.items()}
    return {"metadata": {"name": "q"}, "status": {"hard": amounts, "used": dict.fromkeys(amounts, "1")}}


def test_a_quota_must_have_room_for_all_pods() -> None:
    line = only([*job_lines(job(), replace(GOOD, quotas=[quota(pods="4")]))])
    assert line.found == "q leaves 3 of pods (1 of 4 used), 4 wanted"
    assert bad([*job_lines(job(), replace(GOOD, quotas=[quota(pods="5")]))]) == []


def test_what_a_quota_counts_must_be_written() -> None:
    seen = replace(GOOD, quotas=[quota(requests__memory="100Gi")])
    line = only([*job_lines(job(), seen)])
    assert "trainer, rollout write none" in line.found
    assert "trainer.resources.requests.memory" in line.advice
    assert bad([*job_lines(job(), replace(seen, limit_ranges=True))]) == []


def test_secrets_and_config_maps_must_be_there() -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
    volumes = [{"name": "code", "mountPath": "/code", "configMap": {"name": "rewards"}}]
    asked = job(env=env, volumes=volumes, imagePullSecrets=[{"name": "own"}])
    assert secrets_of(asked, [{"name": "pull"}]) == ["keys", "own", "pull"]
    seen = replace(GOOD, secrets={"keys": False, "own": Unseen("no"), "pull": True}, config_maps={"rewards": False})
    assert bad([*job_lines(asked, seen)]) == [
        ("fail", "small: volume code"),
        ("fail", "small: Secret"),
        ("warn", "small: Secret"),
    ]


def test_the_servers_refusal_is_told() -> None:
    line = only([*job_lines(job(), replace(GOOD, refusals={"small": "spec.x: no"}))])
    assert line.found == "the API server refuses the job: spec.x: no"


def test_a_lease_that_nobody_renews_is_nobodys() -> None:
    spec = {"holderIdentity": "pod-a", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    now = 1_767_225_600.0
    assert holder({"spec": spec}, now + 20) == "pod-a"
    assert holder({"spec": spec}, now + 40) == ""
    assert holder(None, now) == ""


def test_nodes_and_pods_are_read_for_their_gpus() -> None:
    raw = {
        "metadata": {"name": "a"},
        "spec": {
            "taints": [
                {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                {"key": "soft", "effect": "PreferNoSchedule"},
            ]
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "8"}},
    }
    assert node(raw) == NodeSeen("a", True, 8, (("nvidia.com/gpu", "NoSchedule"),))
    assert not node(edited(raw, {"spec.unschedulable": True})).usable
    box = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert gpus_of({"spec": {"nodeName": "a", "containers": [box, {}]}}) == 2
    assert gpus_of({"spec": {"containers": [box]}}) == 0


def test_small_readings() -> None:
    assert labels_of(Unseen("there is no namespace x: create it")) is None
    assert jobs_seen([]) is None
    assert jobs_seen([{"status": {"observedGeneration": 1}}]) is True
    schema = {"properties": {"a": {"items": {"properties": {"b": {}}}}}}
    assert field_paths(schema, "spec") == {"spec.a", "spec.a[].b"}
