"""One job's pods on both substrates: the same commands, environment and job.json but for the map."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from drumroll_cli.local import rundir
from drumroll_cli.local.podspec import parse_pod
from drumroll_operator.cluster_substrate import kubernetes_substrate
from drumroll_operator.manifests import Manifest, render_pods, threads_per_process
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import local_substrate

from drumroll.api.loading import parse_jobs
from drumroll.api.spec import RLJob
from drumroll.job import ResolvedJob

TOKEN = {"name": "HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
SPEC: dict[str, Any] = {
    "model": {"path": "models/tiny", "dtype": "float32"},
    "data": {"train": {"path": "t.jsonl"}, "maxPromptTokens": 16, "maxResponseTokens": 16},
    "reward": {"type": "exact"},
    "env": [TOKEN, {"name": "TRACKER_API_KEY", "value": "sentinel-0123456789"}],
    "rollout": {"replicas": 2, "graceSeconds": 45, "env": [{"name": "TRACKER_API_KEY", "value": "sentinel-other"}]},
    "trainer": {"processesPerReplica": 2},
    "weights": {"volume": {"persistentVolumeClaim": {"claimName": "files"}}},
}
SETTINGS = OperatorSettings.model_validate(
    {"images": {role: {"reference": f"registry.test/{role}:1"} for role in ("scheduler", "rollout", "trainer")}}
)
OF_PLACE = {"OMP_NUM_THREADS", "DRUMROLL_HEALTH_PORT", "DRUMROLL_TERMINATION_FILE", "HOME", "NUMBA_CACHE_DIR"}
OF_PLACE |= {"USER", "LOGNAME", "PYTHONDONTWRITEBYTECODE"}
"""Variables that say where a pod is, not what it does."""


def job_of(**changes: Any) -> RLJob:
    wire = {
        "apiVersion": "drumroll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "tokens", "namespace": "team", "uid": "uid-1"},
        "spec": SPEC | changes,
    }
    loaded = parse_jobs(json.dumps(wire), "test")
    assert not loaded.problems, loaded.problems
    return loaded.jobs[0].job


def here(job: RLJob, tmp_path: Path) -> ResolvedJob:
    return rundir.resolve(job, tmp_path / "run", uid="uid-1", source_dir=tmp_path, port=None)


def there(job: RLJob) -> ResolvedJob:
    """The same job as an operator resolves it."""
    return resolve(job, SETTINGS)


def local_pods(resolved: ResolvedJob, tmp_path: Path) -> list[Manifest]:
    return render_pods(resolved, local_substrate(resolved, run_dir=str(tmp_path / "run"), cores=8))


def cluster_pods(job: RLJob) -> list[Manifest]:
    resolved = there(job)
    substrate = kubernetes_substrate(resolved, SETTINGS, config_map="tokens-1")
    return render_pods(resolved, substrate)


def containers(pods: list[Manifest]) -> list[dict[str, Any]]:
    return [
        container for pod in pods for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
    ]


def mapped(text: str, job: ResolvedJob) -> str:
    """The text with what a substrate decides (folders, addresses, secret files) written as names."""
    store = job.endpoints.store.rpartition(":")[2]
    places = {
        **{path: f"<{role} token>" for role, path in job.secrets.token_files.items()},
        **{path: f"<{role} password>" for role, path in job.secrets.store_password_files.items()},
        job.layout.data_dir: "<data>",
        job.layout.model_dir: "<model>",
        job.metrics_path or "": "<metrics>",
        job.layout.job_dir: "<job>",
        job.endpoints.scheduler: "<scheduler>",
        job.endpoints.store: "<store>",
        f"--port={store}": "--port=<store>",
    }
    text = text.replace(f'"sourceDir": "{job.layout.source_dir}"', '"sourceDir": "<source>"')
    text = re.sub(r'"operatorScales": \w+', '"operatorScales": "<who scales>"', text)
    text = re.sub(r'"operator": "[^"]+",\s+', "", text)  # A laptop has no operator with a token.
    for place, name in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(place, name)
    return re.sub(r"--bind=\S+", "--bind=<bind>", text)


def test_both_substrates_run_the_same_commands(tmp_path: Path) -> None:
    job = job_of()
    resolved = here(job, tmp_path)
    ours = [mapped(" ".join(c["command"]), resolved) for c in containers(local_pods(resolved, tmp_path))]
    theirs = [mapped(" ".join(c["command"]), there(job)) for c in containers(cluster_pods(job))]
    assert ours == theirs
    assert all(not re.search(r"(^|[ =])/", command) for command in ours), ours


def test_both_substrates_give_the_same_variables(tmp_path: Path) -> None:
    job = job_of()

    def names(pods: list[Manifest]) -> list[list[str]]:
        return [[v["name"] for v in c["env"] if v["name"] not in OF_PLACE] for c in containers(pods)]

    ours = names(local_pods(here(job, tmp_path), tmp_path))
    assert ours == names(cluster_pods(job))
    assert {"DRUMROLL_JOB", "DRUMROLL_ROLE", "DRUMROLL_REPLICA"} <= set.intersection(*map(set, ours))


def test_job_json_is_the_same_but_for_the_map(tmp_path: Path) -> None:
    ours, theirs = here(job_of(), tmp_path), there(job_of())
    assert mapped(ours.to_json(), ours) == mapped(theirs.to_json(), theirs)


def test_a_reference_stays_a_reference_and_the_literal_is_in_pods_alone_s6(tmp_path: Path) -> None:
    job = job_of()
    for pods, resolved in (
        (local_pods(here(job, tmp_path), tmp_path), here(job, tmp_path)),
        (cluster_pods(job), there(job)),
    ):
        for container in containers(pods):
            assert TOKEN in container["env"]
        text = resolved.to_json()
        assert "sentinel" not in text
        assert "HUB_TOKEN" not in text
        assert ResolvedJob.model_validate_json(text).digest() == resolved.digest()


def test_a_roles_variable_wins_over_the_jobs(tmp_path: Path) -> None:
    values = {
        pod["metadata"]["name"]: next(
            v["value"] for v in pod["spec"]["containers"][0]["env"] if v["name"] == "TRACKER_API_KEY"
        )
        for pod in cluster_pods(job_of())
    }
    assert values["tokens-rollout-0"] == "sentinel-other"
    assert values["tokens-trainer-0"] == "sentinel-0123456789"


def test_every_local_pod_is_within_what_the_runner_supports(tmp_path: Path) -> None:
    parsed = [parse_pod(pod) for pod in local_pods(here(job_of(), tmp_path), tmp_path)]
    assert [pod.name for pod in parsed] == ["store", "scheduler", "trainer-0", "rollout-0", "rollout-1"]
    assert [pod.role for pod in parsed] == ["store", "scheduler", "trainer", "rollout", "rollout"]
    assert parsed[-1].grace_s == 45.0
    assert parsed[1].init[0].command == ("python", "-m", "drumroll.data")


def test_only_the_local_store_stays_on_the_loopback(tmp_path: Path) -> None:
    assert "--bind=127.0.0.1" in containers(local_pods(here(job_of(), tmp_path), tmp_path))[0]["command"]
    assert "--bind=*" in containers(cluster_pods(job_of()))[0]["command"]


def test_each_pod_of_a_cluster_sees_its_own_secrets_alone() -> None:
    for pod in cluster_pods(job_of()):
        role = pod["metadata"]["labels"]["drumroll.dev/role"]
        secrets = [v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v]
        assert secrets == [f"tokens-{role}-secrets"]


def test_a_store_of_ones_own_has_no_pod() -> None:
    job = job_of(stream={"url": "redis://redis:6379", "secretRef": "redis"})
    assert all(pod["metadata"]["labels"]["drumroll.dev/role"] != "store" for pod in cluster_pods(job))


def test_several_processes_meet_through_torchrun_and_one_needs_none() -> None:
    def trainer(**trainer: Any) -> list[list[str]]:
        pods = cluster_pods(job_of(trainer=trainer))
        return [p["spec"]["containers"][0]["command"] for p in pods if "trainer" in p["metadata"]["name"]]

    assert trainer() == [["python", "-m", "drumroll_trainer"]]
    launcher = ["python", "-m", "drumroll_trainer.learner.launch"]
    assert trainer(processesPerReplica=2)[0][:5] == [*launcher, "--standalone", "--nproc-per-node=2"]
    many = trainer(replicas=2, resources={"limits": {"nvidia.com/gpu": 4}})
    assert [command[4] for command in many] == ["--node-rank=0", "--node-rank=1"]
    assert all("--nproc-per-node=4" in command for command in many)
    assert all("--master-addr=tokens-trainer-0.tokens-trainer" in command for command in many)


@pytest.mark.parametrize(("cores", "threads"), [(None, None), (2, 1), (8, 2), (64, 16)])
def test_threads_are_cores_divided_by_who_computes(cores: int | None, threads: int | None) -> None:
    assert threads_per_process(there(job_of()), cores) == threads


@pytest.mark.parametrize(
    ("resources", "threads"),
    [({}, None), ({"limits": {"cpu": "8500m"}}, "4"), ({"requests": {"cpu": "500m"}}, "1")],
)
def test_a_pod_uses_the_cores_that_it_is_given(resources: dict[str, Any], threads: str | None) -> None:
    pods = cluster_pods(job_of(trainer={"processesPerReplica": 2, "resources": resources}))
    trainer = next(pod for pod in pods if pod["metadata"]["name"] == "tokens-trainer-0")
    values = {v["name"]: v.get("value") for v in trainer["spec"]["containers"][0]["env"]}
    assert values.get("OMP_NUM_THREADS") == threads


def test_pods_are_labelled_and_named_by_job_and_part() -> None:
    for pod in cluster_pods(job_of()):
        labels = pod["metadata"]["labels"]
        assert pod["metadata"]["namespace"] == "team"
        assert labels["drumroll.dev/uid"] == "uid-1"
        assert pod["metadata"]["name"].startswith(f"tokens-{labels['drumroll.dev/role']}")
