"""Everything that is rendered for a job is what a real API server takes, in a namespace of the *restricted* profile."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from drumroll_operator.manifests import Manifest
from drumroll_operator.objects import children
from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import ROLES

from drumroll.api.loading import parse_jobs
from drumroll.api.spec import RLJob
from drumroll.testing import eventually_sync

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

NAMESPACE = "drumroll-rendered"
UID = "0c2d7a52-6f5e-4a7e-9d0b-0123456789ab"
SETTINGS = OperatorSettings.model_validate(
    {
        "images": {role: {"reference": f"registry.test/{role}:1"} for role in ("scheduler", "rollout", "trainer")},
        "imagePullSecrets": [{"name": "regcred"}],
    }
)
_TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
_CHOSEN = {"matchLabels": {"team": "a"}}
PATCH: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"example.test/note": "b"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}},
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": _CHOSEN}}
                ]
            },
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": _CHOSEN}
        ],
        "schedulerName": "other",
        "initContainers": [
            {
                "name": "fetch",
                "image": "tools:1",
                "args": ["get"],
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
                "resources": {"limits": {"memory": "1024Mi"}},
                "volumeMounts": [{"name": "drumroll-volume", "mountPath": "/data", "subPath": "models"}],
            }
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "more"}},
            {"name": "config", "configMap": {"name": "more"}},
            {"name": "hub", "secret": {"secretName": "hub"}},
            {"name": "image", "image": {"reference": "files:1"}},
        ],
        "volumeMounts": [
            {"name": name, "mountPath": f"/mounted/{name}", "readOnly": True} for name in ("claim", "config", "image")
        ],
    },
}
GPUS = {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}, "requests": {"cpu": "1500m"}}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {
        "env": [{"name": "TRACKER_API_KEY", "value": "x"}, PATCH["spec"]["initContainers"][0]["env"][0]],
        "volumes": [
            {"name": "models", "mountPath": "/models", "persistentVolumeClaim": {"claimName": "models"}},
            {"name": "base", "mountPath": "/base", "image": {"reference": "registry.test/model:1"}},
            {"name": "reward", "mountPath": "/reward", "configMap": {"name": "reward"}},
        ],
        "imagePullSecrets": [{"name": "own"}],
        "securityContext": {"runAsUser": 4000, "runAsGroup": 4000, "fsGroup": 4000, "supplementalGroups": [5000]},
        "rollout": {"replicas": 3, "tensorParallelSize": 2, "resources": GPUS, "podTemplatePatch": PATCH},
        "trainer": {"replicas": 3, "resources": GPUS, "podTemplatePatch": PATCH, "image": "own/trainer:1"},
        "scheduler": {"resources": {"limits": {"cpu": 2}}, "podTemplatePatch": PATCH},
    },
    "own store": {"stream": {"url": "rediss://10.0.0.7:6380", "secretRef": "redis", "caSecretRef": "ca"}},
}


def job_of(**changes: Any) -> RLJob:
    spec: dict[str, Any] = {
        "model": {"path": "models/tiny"},
        "data": {"train": {"path": "train.jsonl"}, "maxPromptTokens": 16, "maxResponseTokens": 16},
        "reward": {"type": "exact"},
        "weights": {"volume": {"persistentVolumeClaim": {"claimName": "files"}}},
    }
    metadata = {"name": "rendered", "namespace": NAMESPACE, "uid": UID}
    wire = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec | changes}
    loaded = parse_jobs(json.dumps(wire), "test")
    assert not loaded.problems, loaded.problems
    return loaded.jobs[0].job


def rendered(job: RLJob) -> tuple[list[Manifest], list[Manifest]]:
    """(pods, other objects)"""
    resolved = resolve(job, SETTINGS)
    roles = [role for role in ROLES if role != "store" or not job.spec.stream.url]
    pods = [pod(resolved, SETTINGS, role, index, set_number=index) for role in roles for index in (0, 1)]
    return pods, children(resolved, SETTINGS, b"k" * 32)


@pytest.fixture(scope="module")
def restricted(api_server: Any) -> Iterator[Any]:
    """A namespace that refuses what is not of the restricted profile, warnings included."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    made = api_server.kubectl("apply", "-f", "-", text=json.dumps(namespace))
    assert made.returncode == 0, made.stderr
    eventually_sync(
        lambda: api_server.kubectl("-n", NAMESPACE, "get", "serviceaccount", "default").returncode == 0, 60.0
    )
    yield api_server
    api_server.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_real_api_server_takes_every_rendered_object(spec: dict[str, Any], restricted: Any) -> None:
    pods, others = rendered(job_of(**spec))
    tried = [(["create"], pods), (["apply", "--server-side", "--field-manager=drumroll-operator"], others)]
    for verb, objects in tried:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        arguments = ["-n", NAMESPACE, *verb, "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-"]
        done = restricted.kubectl(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == len(objects)


def test_the_profile_is_enforced_there(restricted: Any) -> None:
    """Without this the test above would prove nothing."""
    bad = rendered(job_of())[0][0]
    del bad["spec"]["containers"][0]["securityContext"]
    done = restricted.kubectl("-n", NAMESPACE, "create", "--dry-run=server", "-f", "-", text=json.dumps(bad))
    assert 'violates PodSecurity "restricted' in done.stderr


def test_applying_twice_changes_nothing_k6(restricted: Any) -> None:
    """What the server defaults and normalises is not fought over: the second write is none."""
    _, others = rendered(job_of(**SPECS["everything"]))
    for item in others:
        del item["metadata"]["ownerReferences"]  # The job does not exist: the collector would take them away.
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": others})
    apply = ["-n", NAMESPACE, "apply", "--server-side", "--field-manager=drumroll-operator", "-o", "json", "-f", "-"]

    def versions() -> dict[str, str]:
        done = restricted.kubectl(*apply, text=text)
        assert done.returncode == 0, done.stderr
        items = json.loads(done.stdout)["items"]
        return {f"{item['kind']} {item['metadata']['name']}": _state(item["metadata"]) for item in items}

    assert versions() == versions()


def test_the_share_of_replicas_that_may_leave_is_counted_against_the_jobs_scale(restricted: Any) -> None:
    """A budget's share needs an owner with a scale; without one the API server would refuse every eviction."""
    wire = job_of(rollout={"replicas": 6}).to_wire()
    del wire["metadata"]["uid"]
    made = restricted.kubectl("-n", NAMESPACE, "create", "-o", "json", "-f", "-", text=json.dumps(wire))
    assert made.returncode == 0, made.stderr
    stored = json.loads(made.stdout)
    job = resolve(parse_jobs(json.dumps(stored), "test").jobs[0].job, SETTINGS)
    pods = [pod(job, SETTINGS, "rollout", index) for index in range(2)]
    budgets = [item for item in children(job, SETTINGS, b"k" * 32) if item["kind"] == "PodDisruptionBudget"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*pods, *budgets]})
    done = restricted.kubectl("-n", NAMESPACE, "apply", "--server-side", "--force-conflicts", "-f", "-", text=text)
    assert done.returncode == 0, done.stderr

    def counted() -> Any:
        shown = restricted.kubectl("-n", NAMESPACE, "get", "pdb", "rendered-rollout", "-o", "json")
        status = json.loads(shown.stdout).get("status", {})
        if status.get("expectedPods"):
            return status["expectedPods"], status["desiredHealthy"]
        # The controller learns of a resource that is as new as this one within half a minute, and must then look again.
        restricted.kubectl(
            "-n", NAMESPACE, "annotate", "pdb", "rendered-rollout", "--overwrite", f"test/at={time.time()}"
        )
        return None

    # A quarter of six, rounded up, may leave.
    assert eventually_sync(counted, 120.0, "the budget's counts", pause_s=3.0) == (6, 4)


def _state(metadata: dict[str, Any]) -> str:
    """What a write of the object moves. A controller writes the status of budgets, which moves their version alone."""
    return str(metadata.get("generation") or metadata["resourceVersion"])
