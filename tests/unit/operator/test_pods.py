"""The pods of a job on a cluster, whatever it asks for."""

import json
import re
from typing import Any

import pytest
from drumroll_operator.labels import SET
from drumroll_operator.manifests import Manifest
from drumroll_operator.objects import children
from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import ROLES
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st

from drumroll.api.spec import RLJob

KEY = b"k" * 32
_INIT = {"name": "fetch", "image": "tools:1", "command": ["fetch"]}
_MOUNTED = [{"name": "drumroll-volume", "mountPath": "/data"}]

patches = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.sampled_from([{"labels": {"team": "a"}}, {"annotations": {"note": "x"}}]),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "nodeSelector": st.just({"pool": "gpu"}),
                "tolerations": st.just([{"key": "spot", "operator": "Exists"}]),
                "priorityClassName": st.just("high"),
                "initContainers": st.sampled_from([[_INIT], [_INIT | {"volumeMounts": _MOUNTED}]]),
                "volumes": st.just([{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]),
            },
        ),
    },
)
resources = st.sampled_from(
    [{}, {"limits": {"nvidia.com/gpu": 4}}, {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}]
)
jobs = st.fixed_dictionaries(
    {
        "trainer": st.fixed_dictionaries(
            {"replicas": st.integers(1, 3), "resources": resources}, optional={"podTemplatePatch": patches}
        ),
        "rollout": st.fixed_dictionaries({"replicas": st.integers(1, 3)}, optional={"podTemplatePatch": patches}),
        "scheduler": st.fixed_dictionaries({}, optional={"podTemplatePatch": patches, "image": st.just("own:2")}),
        "env": st.just([{"name": "KEY", "value": "sentinel-0123456789"}]),
    },
    optional={
        "volumes": st.just([{"name": "models", "mountPath": "/models", "image": {"reference": "m:1"}}]),
        "securityContext": st.sampled_from([{"runAsUser": 4000}, {"fsGroup": 7, "supplementalGroups": [9, 8]}]),
        "imagePullSecrets": st.just([{"name": "own"}]),
        "stream": st.sampled_from([{"url": "redis://redis:6379", "secretRef": "redis"}, {}]),
    },
)


def pods_of(job: RLJob, settings: OperatorSettings) -> list[Manifest]:
    resolved = resolve(job, settings)
    roles = [role for role in ROLES if role != "store" or not job.spec.stream.url]
    return [pod(resolved, settings, role, index) for role in roles for index in (0, 1)]


def containers(manifest: Manifest) -> list[dict[str, Any]]:
    spec = manifest["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def without_secrets(objects: list[Manifest]) -> list[Manifest]:
    return [item for item in objects if item["kind"] != "Secret"]


@given(changes=jobs)
@budget(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_pod_keeps_to_the_restricted_profile(changes: dict[str, Any], make_job: Any, settings: Any) -> None:
    for manifest in pods_of(make_job(**changes), settings):
        spec = manifest["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "hostAliases"}
        for volume in spec["volumes"]:
            sources = volume.keys() - {"name"}
            assert sources <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim", "image"}, volume
        for container in containers(manifest):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
            assert not security.keys() - {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}
            assert all("hostPort" not in port for port in container.get("ports", []))
            assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])


@given(changes=jobs)
@budget(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rendering_twice_gives_the_same_and_no_secret_is_outside_of_secrets(
    changes: dict[str, Any], make_job: Any, settings: Any
) -> None:
    def everything() -> list[Manifest]:
        job = make_job(**changes)
        return [*pods_of(job, settings), *children(resolve(job, settings), settings, KEY)]

    first = everything()
    assert json.dumps(first) == json.dumps(everything())
    values = {value for item in first if item["kind"] == "Secret" for value in item["data"].values()}
    text = json.dumps(without_secrets(first))
    assert not any(value in text for value in values)
    config = next(item for item in first if item["kind"] == "ConfigMap")
    assert "sentinel" not in json.dumps(config)
    for manifest in first:
        owner = manifest["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == ("RLJob", True, True)
        assert manifest["metadata"]["namespace"] == "team"


@given(changes=jobs)
@budget(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_are_once_each_in_every_pod(changes: dict[str, Any], make_job: Any, settings: Any) -> None:
    for manifest in pods_of(make_job(**changes), settings):
        volumes = [volume["name"] for volume in manifest["spec"]["volumes"]]
        assert len(volumes) == len(set(volumes))
        for container in containers(manifest):
            variables = [variable["name"] for variable in container["env"]]
            assert len(variables) == len(set(variables))
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


def test_quantities_that_mean_the_same_render_the_same_k6(make_job: Any, settings: Any) -> None:
    def rendered(requests: dict[str, Any], limits: dict[str, Any]) -> str:
        part = {"replicas": 1, "resources": {"requests": requests, "limits": limits}}
        job = make_job(rollout=part, trainer=part)
        resolved = resolve(job, settings)
        return json.dumps([*pods_of(job, settings), *children(resolved, settings, KEY)])

    written = rendered({"cpu": "0.5", "memory": "1073741824"}, {"cpu": "1000m", "memory": "1024Mi"})
    assert written == rendered({"cpu": "500m", "memory": "1Gi"}, {"cpu": 1, "memory": "1.0Gi"})
    assert rendered({"cpu": 1, "memory": "1.5Gi"}, {"cpu": "1.0", "memory": "1536Mi"}) == rendered(
        {"cpu": "1000m", "memory": "1536Mi"}, {"cpu": "1", "memory": "1.5Gi"}
    )


def test_a_reference_is_passed_on_and_nowhere_resolved_s6(make_job: Any, settings: Any) -> None:
    token = {"name": "HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    job = make_job(env=[token, {"name": "TRACKER_API_KEY", "value": "sentinel-0123456789"}])
    for manifest in pods_of(job, settings):
        assert all(token in container["env"] for container in containers(manifest))
    text = resolve(job, settings).to_json()
    assert "sentinel" not in text
    assert "HUB_TOKEN" not in text


def test_pull_secrets_of_the_installation_and_of_the_job_are_in_every_pod_h4(make_job: Any) -> None:
    private = OperatorSettings.model_validate(
        {
            "images": {
                role: {"reference": f"reg.example.test:5000/mirror/{role}:1"}
                for role in ("scheduler", "rollout", "trainer")
            },
            "imagePullSecrets": [{"name": "regcred"}],
        }
    )
    job = make_job(imagePullSecrets=[{"name": "own"}, {"name": "regcred"}])
    for manifest in pods_of(job, private):
        assert manifest["spec"]["imagePullSecrets"] == [{"name": "regcred"}, {"name": "own"}]
        assert all(c["image"].startswith("reg.example.test:5000/mirror/") for c in containers(manifest))


def test_images_come_from_the_job_first(make_job: Any, settings: Any) -> None:
    job = make_job(
        rollout={"image": "own/rollout:2"},
        scheduler={"image": "own/scheduler:3"},
        stream={"embedded": {"image": "v:9"}},
    )
    images = {
        pod(resolve(job, settings), settings, role)["metadata"]["name"]: [
            container["image"] for container in containers(pod(resolve(job, settings), settings, role))
        ]
        for role in ROLES
    }
    assert images == {
        "tokens-store": ["v:9"],
        "tokens-scheduler": ["own/scheduler:3", "own/scheduler:3"],
        "tokens-rollout-0": ["own/rollout:2"],
        "tokens-trainer-0": ["registry.test/trainer:1"],
    }
    store = pod(resolve(make_job(scheduler={"image": "own/scheduler:3"}), settings), settings, "store")
    assert containers(store)[0]["image"] == "own/scheduler:3"


def test_gpus_are_requested_as_limited_and_their_taint_is_tolerated(make_job: Any, settings: Any) -> None:
    part = {"resources": {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}}, "tensorParallelSize": 2}
    job = resolve(make_job(rollout=part), settings)
    rollout, trainer = pod(job, settings, "rollout"), pod(job, settings, "trainer")
    assert containers(rollout)[0]["resources"] == {
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "2"},
        "requests": {"nvidia.com/gpu": "2"},
    }
    tolerated = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert tolerated in rollout["spec"]["tolerations"]
    assert tolerated not in trainer["spec"]["tolerations"]
    assert "resources" not in containers(trainer)[0]


def test_scheduler_and_store_ask_for_what_they_need_unless_told(make_job: Any, settings: Any) -> None:
    job = resolve(make_job(), settings)
    assert containers(pod(job, settings, "store"))[0]["resources"]["requests"]["memory"] == "1472Mi"
    for container in containers(pod(job, settings, "scheduler")):
        assert container["resources"]["requests"]["cpu"] == "100m"
    asked = {"resources": {"requests": {"cpu": 1}, "limits": {"memory": "2Gi"}}}
    told = resolve(make_job(scheduler=asked, stream={"embedded": asked}), settings)
    for role in ("scheduler", "store"):
        for container in containers(pod(told, settings, role)):
            assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}


def test_user_and_groups_are_the_jobs_else_the_operators_else_the_platforms(make_job: Any, settings: Any) -> None:
    def security(job: RLJob, given: OperatorSettings) -> dict[str, Any]:
        context = pod(resolve(job, given), given, "rollout")["spec"]["securityContext"]
        del context["runAsNonRoot"], context["seccompProfile"]
        return dict(context)

    operators = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001, "fsGroupChangePolicy": "OnRootMismatch"}
    assert security(make_job(), settings) == operators
    own = make_job(securityContext={"runAsUser": 4000, "supplementalGroups": [9, 8, 9]})
    assert security(own, settings) == operators | {"runAsUser": 4000, "supplementalGroups": [8, 9]}
    open_ = OperatorSettings.model_validate(
        settings.to_wire() | {"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    )
    assert security(make_job(), open_) == {}


def test_grace_is_longer_than_a_drain(make_job: Any, settings: Any) -> None:
    job = resolve(make_job(rollout={"graceSeconds": 300}), settings)
    assert pod(job, settings, "rollout")["spec"]["terminationGracePeriodSeconds"] == 315


def test_pods_run_once_and_are_labelled_for_their_watch(make_job: Any, settings: Any) -> None:
    job = resolve(make_job(), settings)
    rendered = pod(job, settings, "trainer", 1, set_number=7)
    assert rendered["spec"]["restartPolicy"] == "Never"
    labels = rendered["metadata"]["labels"]
    ours = {key.removeprefix("drumroll.dev/"): value for key, value in labels.items() if "drumroll.dev" in key}
    assert ours == {"job": "tokens", "uid": job.uid, "role": "trainer", "index": "1", "set": "7"}
    assert SET not in pod(job, settings, "trainer", 1)["metadata"]["labels"]
    assert (rendered["spec"]["hostname"], rendered["spec"]["subdomain"]) == ("tokens-trainer-1", "tokens-trainer")


def test_the_store_is_not_given_up_as_soon_as_the_others(make_job: Any, settings: Any) -> None:
    job = resolve(make_job(), settings)
    seconds = {
        role: {t.get("tolerationSeconds") for t in pod(job, settings, role)["spec"]["tolerations"]} for role in ROLES
    }
    assert seconds == {"store": {300}, "scheduler": {60}, "rollout": {60}, "trainer": {60}}


@pytest.mark.parametrize("role", ["scheduler", "rollout", "trainer"])
def test_processes_are_asked_at_their_port(role: Any, make_job: Any, settings: Any) -> None:
    main = pod(resolve(make_job(), settings), settings, role)["spec"]["containers"][0]
    port = next(variable["value"] for variable in main["env"] if variable["name"] == "DRUMROLL_HEALTH_PORT")
    for name, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert main[name]["httpGet"] == {"path": path, "port": int(port)}
    startup = main["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800


def test_the_store_is_asked_by_a_command_and_seldom(make_job: Any, settings: Any) -> None:
    main = pod(resolve(make_job(), settings), settings, "store")["spec"]["containers"][0]
    assert main["livenessProbe"]["periodSeconds"] >= 60
    assert main["readinessProbe"]["tcpSocket"] == {"port": 6379}
    assert main["livenessProbe"]["exec"]["command"][:3] == ["python", "-m", "drumroll.ping"]


def test_every_file_that_a_process_reads_is_mounted(make_job: Any, settings: Any) -> None:
    for stream in ({}, {"url": "redis://redis:6379", "secretRef": "redis"}):
        job = resolve(make_job(stream=stream), settings)
        for role in ("scheduler", "rollout", "trainer"):
            main = pod(job, settings, role)["spec"]["containers"][0]
            folders = {mount["mountPath"] for mount in main["volumeMounts"]}
            token, password = job.secrets.token_files[role], job.secrets.store_password_files[role]
            for path in (token, password, "/etc/drumroll/job.json", job.layout.job_dir, job.layout.model_dir):
                assert any(path.startswith(f"{folder}/") for folder in folders), path


def test_no_path_of_a_machine_is_in_a_command(make_job: Any, settings: Any) -> None:
    for manifest in pods_of(make_job(), settings):
        for container in containers(manifest):
            outside = re.findall(r"(?:^|[ =])(/\S+)", " ".join(container["command"]))
            assert all(path.startswith(("/var/lib/drumroll/", "/var/run/secrets/drumroll/")) for path in outside)
