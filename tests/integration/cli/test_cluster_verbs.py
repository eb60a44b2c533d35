"""The cluster verbs against a real API server. There is no kubelet: pods are objects that stay as they are made."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from drumroll_cli import main as cli
from typer.testing import CliRunner

from drumroll.api.crd import custom_resource_definition
from drumroll.errors import DrumrollError
from drumroll.testing import eventually_sync

pytestmark = pytest.mark.cluster

NAMESPACE = "drumroll-cli-tests"
JOB: dict[str, Any] = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"path": "models/tiny"},
        "data": {"train": {"path": "data/train.jsonl"}},
        "reward": {"type": "math"},
        "steps": 9,
        "rollout": {"replicas": 2, "maxReplicas": 4},
    },
}


@dataclass
class Shell:
    """Runs verbs against the API server."""

    server: Any
    kubeconfig: str
    folder: Path

    def run(self, *arguments: str, text: str | None = None) -> tuple[int, str, str]:
        """Exit code, standard output, standard error, as `main` has them."""
        where = ["--kubeconfig", self.kubeconfig, "-n", NAMESPACE]
        result = CliRunner().invoke(cli.app, [arguments[0], *where, *arguments[1:]], input=text)
        if isinstance(result.exception, DrumrollError):
            return cli.exit_code_of(result.exception) or 0, result.stdout, f"{result.stderr}{result.exception}"
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """What kubectl prints, in the tests' namespace."""
        done = self.server.kubectl("-n", NAMESPACE, *arguments, text=text)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def file(self, *jobs: dict[str, Any]) -> str:
        """A file with these jobs."""
        path = self.folder / "jobs.yaml"
        path.write_text("---\n".join(yaml.safe_dump(job) for job in jobs))
        return str(path)

    def job(self, name: str = "small") -> Any:
        """The job as the server has it."""
        return json.loads(self.kubectl("get", "rlj", name, "-o", "json"))

    def set_status(self, name: str, **status: Any) -> None:
        """As the operator would."""
        change = json.dumps({"status": status})
        self.kubectl("patch", "rlj", name, "--subresource=status", "--type=merge", "-p", change)


@pytest.fixture(scope="module")
def namespaced(api_server: Any) -> Iterator[Any]:
    api_server.kubectl("create", "namespace", NAMESPACE)
    yield api_server
    api_server.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def shell(namespaced: Any, tmp_path: Path) -> Iterator[Shell]:
    api_server = namespaced
    yield Shell(api_server, api_server.environment["KUBECONFIG"], tmp_path)
    for kind in ("rlj", "pods", "resourcequota", "serviceaccounts,roles,rolebindings"):
        extra = ["--grace-period=0", "--force"] if kind == "pods" else []
        api_server.kubectl("-n", NAMESPACE, "delete", kind, "--all", *extra)


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {**JOB, "metadata": {"name": name}, "spec": {**JOB["spec"], **spec}}


def pod(job: dict[str, Any], role: str, index: int = 0) -> str:
    labels = {
        "drumroll.dev/job": job["metadata"]["name"],
        "drumroll.dev/uid": job["metadata"]["uid"],
        "drumroll.dev/role": role,
        "drumroll.dev/index": str(index),
    }
    name = f"{job['metadata']['name']}-{role}-{index}"
    spec = {"containers": [{"name": role, "image": "unknown"}], "automountServiceAccountToken": False}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})


def test_a_job_is_submitted_as_it_was_written(shell: Shell) -> None:
    code, out, err = shell.run("submit", shell.file(JOB), "--set", "steps=7")
    assert (code, err) == (0, "")
    assert out.startswith(f"small created in namespace {NAMESPACE}\n")
    assert shell.job()["spec"]["steps"] == 7
    (owner,) = shell.job()["metadata"].get("managedFields", [{"manager": "drumroll-cli"}])
    assert owner["manager"] == "drumroll-cli"


def test_a_dry_run_creates_nothing(shell: Shell) -> None:
    code, out, _ = shell.run("submit", shell.file(JOB), "--dry-run")
    assert (code, out) == (0, f"small would be created in namespace {NAMESPACE}\n")
    assert shell.kubectl("get", "rlj", "-o", "name") == ""


def test_problems_of_the_file_are_told_before_anything_is_sent(shell: Shell) -> None:
    code, _, err = shell.run("submit", shell.file(named("small", steps=0)))
    assert code == 2
    assert "spec.steps is 0: too small: write 1 or more" in err
    assert "1 problem found; nothing was sent to the cluster" in err


def test_one_job_that_cannot_be_created_keeps_the_others_from_it(shell: Shell) -> None:
    shell.run("submit", shell.file(named("first")))
    code, _, err = shell.run("submit", shell.file(named("second"), named("first", seed=3)))
    assert code == 2
    assert "RLJob first is there already (Pending)" in err
    assert "spec.seed is 0 there and 3 in the file" in err
    assert err.endswith("nothing was created")
    assert shell.kubectl("get", "rlj", "-o", "name") == "rljob.drumroll.dev/first\n"


def test_submitting_the_same_again_changes_nothing(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    before = shell.job()["metadata"]["resourceVersion"]
    code, out, _ = shell.run("submit", shell.file(JOB))
    assert code == 0
    assert "small is there already, as " in out
    assert shell.job()["metadata"]["resourceVersion"] == before


def test_a_job_that_has_ended_is_not_taken_for_a_new_one(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    shell.set_status("small", phase="Complete")
    code, _, err = shell.run("submit", shell.file(JOB))
    assert code == 2
    assert "it has ended: drumroll cancel small" in err


@pytest.mark.parametrize(("phase", "end"), [("Complete", 0), ("Failed", 1)])
def test_waiting_ends_with_the_job(phase: str, end: int, shell: Shell) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(shell.run, "submit", shell.file(JOB), "--wait")
        eventually_sync(lambda: "small" in shell.kubectl("get", "rlj", "-o", "name"), 20.0, "the job")
        shell.set_status("small", phase=phase, step=9, jobDir="/var/lib/drumroll/a", message="row 7 has no answer")
        code, out, err = waiting.result(timeout=30)
    assert code == end
    assert f"small  {phase}  step 9/9" in out
    assert ("/var/lib/drumroll/a" in out) == (phase == "Complete")
    assert ("small failed: row 7 has no answer" in err) == (phase == "Failed")


def test_status_shows_all_jobs_and_one(shell: Shell) -> None:
    shell.run("submit", shell.file(named("first"), named("second")))
    shell.set_status("first", phase="Running", step=3, steps=9, version=4, observedGeneration=1)
    code, out, _ = shell.run("status")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["first", "Running"], ["second", "Pending"]]
    shell.kubectl("create", "-f", "-", text=pod(shell.job("first"), "rollout"))
    code, out, _ = shell.run("status", "first")
    assert code == 0
    assert "3/9" in out
    assert "first-rollout-0" in out
    assert "What next" in out


def test_status_for_programs_is_the_object(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    _, out, _ = shell.run("status", "small", "-o", "json")
    assert json.loads(out) == {**shell.job(), "metadata": {**shell.job()["metadata"]}}
    _, out, _ = shell.run("status", "-o", "yaml")
    assert [item["metadata"]["name"] for item in yaml.safe_load(out)["items"]] == ["small"]


def test_events_of_the_job_are_shown(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    job = shell.job()
    about = {"apiVersion": job["apiVersion"], "kind": "RLJob", "name": "small", "namespace": NAMESPACE}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "small.1", "namespace": NAMESPACE},
        "eventTime": job["metadata"]["creationTimestamp"].replace("Z", ".900000Z"),
        "reportingController": "drumroll.dev/operator",
        "reportingInstance": "test",
        "action": "Reconcile",
        "reason": "QuotaExceeded",
        "type": "Warning",
        "note": "no room for rollout-0",
        "regarding": about | {"uid": job["metadata"]["uid"]},
    }
    shell.kubectl("create", "-f", "-", text=json.dumps(event))
    _, out, _ = shell.run("status", "small")
    assert "no room for rollout-0" in out


def test_top_without_a_terminal_is_one_table(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    code, out, _ = shell.run("top")
    assert (code, out.splitlines()[1].split()[:2]) == (0, ["small", "Pending"])
    shell.kubectl("create", "-f", "-", text=pod(shell.job(), "trainer"))
    code, out, _ = shell.run("top", "small", "--once")
    assert code == 0
    assert "trainer-0" in out


def test_jobs_are_scaled_within_their_bounds(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    code, out, _ = shell.run("scale", "small", "4")
    assert (code, out) == (0, "small goes from 2 to 4 rollout replicas\n")
    assert shell.job()["spec"]["rollout"]["replicas"] == 4
    code, _, err = shell.run("scale", "small", "5")
    assert code == 2
    assert "replicas is above maxReplicas" in err
    shell.set_status("small", observedGeneration=2, rollout={"replicas": 4, "ready": 4})
    code, out, _ = shell.run("scale", "small", "4", "--wait")
    assert code == 0
    assert "has 4 rollout replicas already" in out


def test_jobs_are_suspended_and_resumed(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    assert shell.run("suspend", "small")[:2] == (0, "small is being suspended\n")
    assert shell.job()["spec"]["suspend"] is True
    assert shell.run("suspend", "small")[:2] == (0, "small is suspended already (Pending)\n")
    since = shell.job()["metadata"]["creationTimestamp"]
    held = {"type": "Suspended", "status": "True", "reason": "Suspended", "message": "", "lastTransitionTime": since}
    shell.set_status("small", observedGeneration=2, phase="Suspended", conditions=[held])
    assert shell.run("suspend", "small", "--wait")[0] == 0
    assert shell.run("resume", "small")[:2] == (0, "small is being resumed\n")
    assert shell.job()["spec"]["suspend"] is False
    shell.set_status("small", phase="Complete")
    code, _, err = shell.run("suspend", "small")
    assert (code, err) == (2, "RLJob small has ended (Complete): it cannot be suspended")


def test_a_job_is_cancelled_when_somebody_agrees(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    code, _, err = shell.run("cancel", "small", text="n\n")
    assert code == 1
    assert "Files stay on its volume" in err
    code, _, err = shell.run("cancel", "small", text="")
    assert code == 2
    assert "write --yes" in err
    code, out, _ = shell.run("cancel", "small", "--yes", "--wait")
    assert code == 0
    assert out.endswith("small is gone\n")
    assert shell.kubectl("get", "rlj", "-o", "name") == ""


@pytest.mark.parametrize(
    "verb", [("status",), ("top",), ("logs",), ("scale", "2"), ("suspend",), ("resume",), ("cancel",)]
)
def test_a_job_that_is_not_there_is_told_by_every_verb(verb: tuple[str, ...], shell: Shell) -> None:
    code, _, err = shell.run(verb[0], "nobody", *verb[1:])
    assert code == 2
    assert err == f"there is no RLJob nobody in namespace {NAMESPACE}: `drumroll status` lists the jobs there"


def test_logs_say_why_there_are_none(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    code, _, err = shell.run("logs", "small")
    assert (code, err) == (2, "small has no pods now (Pending): drumroll status small")
    shell.kubectl("create", "-f", "-", text=pod(shell.job(), "trainer"))
    assert "no process of small has started yet" in shell.run("logs", "small")[2]
    restarts = [{"role": "trainer", "count": 1, "lastReason": "Killed", "lastMessage": "signal 9"}]
    shell.set_status("small", restarts=restarts)
    code, out, _ = shell.run("logs", "small", "--previous")
    assert (code, out) == (0, "trainer: 1 failure charged, last Killed\n  signal 9\n")


def test_pods_of_an_earlier_job_of_the_name_are_not_shown(shell: Shell) -> None:
    shell.run("submit", shell.file(JOB))
    old = shell.job()
    old["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    shell.kubectl("create", "-f", "-", text=pod(old, "rollout", 3))
    _, out, _ = shell.run("status", "small")
    assert not [line for line in out.splitlines() if line.startswith("small-rollout-3")]


def test_who_may_not_is_told_what_to_ask_for(shell: Shell, tmp_path: Path) -> None:
    shell.kubectl("create", "serviceaccount", "ann")
    token = shell.kubectl("create", "token", "ann").strip()
    config = yaml.safe_load(Path(shell.kubeconfig).read_text())
    config["users"] = [{"name": "ann", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"]["user"] = "ann"
    path = tmp_path / "ann"
    path.write_text(yaml.safe_dump(config))
    ann = Shell(shell.server, str(path), tmp_path)
    code, _, err = ann.run("submit", shell.file(JOB))
    assert code == 2
    assert "may not create rljobs in namespace drumroll-cli-tests" in err
    code, out, _ = ann.run("doctor", "-f", shell.file(JOB))
    assert code == 1
    assert "fail  rights: you may not create rljobs" in out
    assert "warn  rights: you may not create pods/exec" in out
    shell.kubectl("create", "rolebinding", "ann", "--clusterrole=admin", f"--serviceaccount={NAMESPACE}:ann")
    code, out, _ = ann.run("doctor")
    assert "you may not create pods/exec" not in out


def test_doctor_looks_at_what_a_job_asks_for(shell: Shell) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}}
    shell.kubectl("create", "-f", "-", text=json.dumps(quota))
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
    volume = {"persistentVolumeClaim": {"claimName": "nobodys"}}
    job = named("small", env=env, weights={"volume": volume}, model={"path": "/models/tiny"})
    code, out, _ = shell.run("doctor", "--json", "-f", shell.file(job))
    assert code == 1
    checks = {check["subject"]: check for check in json.loads(out)["checks"]}
    assert checks["RLJob"]["level"] == "ok"
    assert checks["rights"]["level"] == "ok"
    assert checks["small"]["found"] == "the API server takes the job"
    assert checks["small: volume"]["found"].startswith("there is no claim nobodys")
    assert checks["small: Secret"]["found"] == "there is no Secret keys"
    assert checks["small: model.path"]["level"] == "fail"
    assert "leaves 3 of pods" in checks["small: quota"]["found"]


@pytest.fixture
def gpu_nodes(shell: Shell) -> Iterator[None]:
    """Two nodes of eight GPUs, one of them tainted; only where there are no nodes of somebody else."""
    if shell.kubectl("get", "nodes", "-o", "name"):
        pytest.skip("the cluster has nodes: GPUs are made up only where there are none")
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    for name in ("gpu-a", "gpu-b"):
        taints = [{"key": "team", "value": "x", "effect": "NoSchedule"}] if name == "gpu-b" else []
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}}
        shell.kubectl("create", "-f", "-", text=json.dumps(node))
        amounts = {"nvidia.com/gpu": "8", "pods": "110", "cpu": "64", "memory": "512Gi"}
        status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
        shell.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    yield
    shell.kubectl("delete", "node", "gpu-a", "gpu-b")


@pytest.mark.usefixtures("gpu_nodes")
def test_doctor_counts_the_gpus_of_nodes(shell: Shell) -> None:
    def told(**spec: Any) -> dict[str, Any]:
        _, out, _ = shell.run("doctor", "--json", "-f", shell.file(named("small", **spec)))
        checks: list[dict[str, Any]] = json.loads(out)["checks"]
        return next(check for check in checks if check["subject"] == "small: GPUs")

    def gpus(number: int) -> dict[str, Any]:
        return {"resources": {"limits": {"nvidia.com/gpu": number}}}

    assert told(trainer=gpus(8), rollout={"replicas": 4, **gpus(2), "tensorParallelSize": 2})["level"] == "ok"
    many = told(trainer=gpus(8), rollout={"replicas": 5, **gpus(2), "tensorParallelSize": 2})
    assert (many["level"], many["found"]) == ("fail", "18 wanted (trainer 1 x 8, rollout 5 x 2), 16 there")
    assert "no node has more than 8" in told(trainer=gpus(16))["found"]


def test_doctor_sees_an_older_definition(shell: Shell) -> None:
    definition = custom_resource_definition()
    older = json.loads(json.dumps(definition))
    (version,) = older["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["activeDeadlineSeconds"]
    rules = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = [
        rule for rule in rules if "activeDeadlineSeconds" not in rule["rule"]
    ]
    force = ["apply", "--server-side", "--force-conflicts", "-f", "-"]
    try:
        shell.kubectl(*force, text=json.dumps(older))
        found = ""
        for _ in range(60):  # The API server publishes a changed definition a moment later.
            found = shell.run("doctor")[1]
            if "lacks spec.activeDeadlineSeconds" in found:
                break
        assert "fail  RLJob: the cluster's definition lacks spec.activeDeadlineSeconds" in found
    finally:
        shell.kubectl(*force, text=json.dumps(definition))


def test_completion_knows_the_jobs(shell: Shell) -> None:
    shell.run("submit", shell.file(named("first"), named("second")))
    words = f"drumroll status --kubeconfig {shell.kubeconfig} -n {NAMESPACE} fi"
    environment = {"_DRUMROLL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "6"}
    result = CliRunner().invoke(cli.app, [], env=environment, prog_name="drumroll")
    assert result.stdout.split() == ["first"]
