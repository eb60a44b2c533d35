"""A whole job by the commands, variables, files and probes of its pods, on a claim that holds a model and data alone.

What a kubelet does (mounts, addresses, init containers) is played by replacing paths and addresses in the manifests.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from drumroll_operator.certificates import server_certificates
from drumroll_operator.objects import children
from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import Role

from drumroll.api.loading import parse_jobs
from drumroll.embedded import free_port
from drumroll.testing import eventually_sync

KEY = b"k" * 32
SETTINGS = OperatorSettings.model_validate(
    {"images": {role: {"reference": f"registry.test/{role}:1"} for role in ("scheduler", "rollout", "trainer")}}
)
PODS: tuple[tuple[Role, int], ...] = (("rollout", 0), ("rollout", 1), ("trainer", 0), ("scheduler", 0), ("store", 0))


@dataclass
class PlayedPod:
    """A pod's processes on this machine."""

    folder: Path
    spec: dict[str, Any]
    text: dict[str, str]
    """What is written otherwise here: paths and addresses."""
    health_port: int
    process: subprocess.Popen[bytes] | None = None
    was_ready: bool = False

    def _here(self, text: str) -> str:
        for theirs, ours in self.text.items():
            text = text.replace(theirs, ours)
        return text

    def start(self, which: str = "containers") -> "subprocess.Popen[bytes]":
        container = self.spec[which][0]
        env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        env |= {v["name"]: self._here(v["value"]) for v in container["env"]}
        if "DRUMROLL_HEALTH_PORT" in env:
            env["DRUMROLL_HEALTH_PORT"] = str(self.health_port)
        with (self.folder / "log").open("ab") as log:
            command = [self._here(word) for word in container["command"]]
            self.process = subprocess.Popen(command, env=env, cwd="/", stdout=log, stderr=log, start_new_session=True)
        return self.process

    def ready(self) -> str | None:
        """None: it is; else why not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=5):
                return None
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode().strip()
        except OSError:
            return "nobody listens"

    def probe(self) -> int:
        """The exit code of the liveness command."""
        command = [self._here(word) for word in self.spec["containers"][0]["livenessProbe"]["exec"]["command"]]
        return subprocess.run(command, check=False, capture_output=True).returncode

    @property
    def last_words(self) -> str:
        path = self.folder / "termination-log"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class PlayedJob:
    """All pods of a job."""

    claim: Path
    job_dir: Path
    pods: dict[str, PlayedPod] = field(default_factory=dict)

    @property
    def story(self) -> str:
        return "\n".join(f"--- {name}\n{(p.folder / 'log').read_text()[-4000:]}" for name, p in self.pods.items())


def played(folder: Path, claim: Path, spec: dict[str, Any], *, tls: bool) -> PlayedJob:
    """The job `spec` with its model and data in `claim`; nothing runs yet."""
    settings = SETTINGS.model_copy(update={"tls": tls})
    metadata = {"name": "tiny", "namespace": "team", "uid": "0c2d7a52-6f5e-4a7e-9d0b-0123456789ab"}
    volume = {"weights": {"volume": {"persistentVolumeClaim": {"claimName": "files"}}}}
    wire = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec | volume}
    loaded = parse_jobs(json.dumps(wire), "test")
    assert not loaded.problems, loaded.problems
    job = resolve(loaded.jobs[0].job, settings)
    objects = children(job, settings, KEY, created=time.time())
    secrets = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "Secret"}
    here = certificates_for_here() if tls else {}
    config = next(item["data"]["job.json"] for item in objects if item["kind"] == "ConfigMap")
    scheduler, store = free_port(), free_port()
    addresses = {
        job.endpoints.scheduler: f"localhost:{scheduler}",
        job.endpoints.store: f"{'rediss' if tls else 'redis'}://localhost:{store}",
        "--port=6379": f"--port={store}",
        "--bind=*": "--bind=127.0.0.1",
        "/var/lib/drumroll": str(claim),
    }
    result = PlayedJob(claim, Path(job.layout.job_dir.replace("/var/lib/drumroll", str(claim))))
    for role, index in PODS:
        rendered = pod(job, settings, role, index)
        own = folder / rendered["metadata"]["name"]
        for name in ("etc", "secrets", "tmp"):
            (own / name).mkdir(parents=True)
        places = {
            "/etc/drumroll": f"{own}/etc",
            "/var/run/secrets/drumroll": f"{own}/secrets",
            "/dev/termination-log": f"{own}/termination-log",
        }
        text = places | addresses
        made = PlayedPod(own, rendered["spec"], text, free_port())
        (own / "etc" / "job.json").write_text(made._here(config))
        mounted = next(v["secret"] for v in rendered["spec"]["volumes"] if "secret" in v)["secretName"]
        for name, data in secrets[mounted].items():
            (own / "secrets" / name).write_bytes(here.get(name) or base64.b64decode(data))
        result.pods[rendered["metadata"]["name"].removeprefix("tiny-")] = made
    return result


def certificates_for_here() -> dict[str, bytes]:
    """In place of those for the names of Services, which nobody knows here."""
    created = datetime.now(UTC)
    made = server_certificates(b"s" * 32, subject="here", names=("localhost",), created=created)
    texts = {"ca.crt": made.authority, "tls.crt": made.certificate, "tls.key": made.key}
    return {name: text.encode() for name, text in texts.items()}


@pytest.fixture(params=["plain", "tls"])
def pods(tmp_path: Path, make_job: Any, request: pytest.FixtureRequest) -> Iterator[PlayedJob]:
    given = make_job("claim", rollout={"replicas": 2})
    job = played(tmp_path, given.folder, given.spec, tls=request.param == "tls")
    yield job
    for one in job.pods.values():
        one.kill()


def note_readiness(job: PlayedJob) -> None:
    for one in job.pods.values():
        one.was_ready = one.was_ready or one.ready() is None


def test_a_job_runs_to_its_end_by_what_its_pods_say(pods: PlayedJob) -> None:
    everyone = pods.pods
    # As on a cluster: all at once, and the scheduler's init container prepares what the others wait for.
    for name in ("store", "trainer-0", "rollout-0", "rollout-1"):
        everyone[name].start()
    preparing = everyone["scheduler"].start("initContainers")
    assert preparing.wait(120) == 0, pods.story
    scheduler = everyone["scheduler"].start()

    def over() -> bool:
        note_readiness(pods)
        return scheduler.poll() is not None

    eventually_sync(over, 240.0, "the scheduler's end", pause_s=0.2)
    report = json.loads(everyone["scheduler"].last_words)
    assert (report["phase"], report["step"]) == ("Complete", 6), pods.story
    codes = {name: everyone[name].process.wait(60) for name in ("scheduler", "trainer-0", "rollout-0", "rollout-1")}
    assert set(codes.values()) == {0}, (codes, pods.story)
    assert {name for name, one in everyone.items() if one.was_ready} == set(codes)
    store = everyone["store"]
    assert store.probe() == 0
    store.process.terminate()
    assert store.process.wait(30) == 0
    assert store.probe() == 1
    written = {path.name for path in pods.job_dir.iterdir()}
    assert {"weights", "checkpoints", "journal", "samples", "store", "data", "metrics.jsonl"} <= written
    assert len((pods.job_dir / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_users_mistake_is_the_last_word_of_the_init_container(pods: PlayedJob) -> None:
    (pods.claim / "train.jsonl").write_text("no json\n")
    scheduler = pods.pods["scheduler"]
    assert scheduler.start("initContainers").wait(120) == 2
    assert "train.jsonl" in scheduler.last_words
    waiting = pods.pods["rollout-0"]
    process = waiting.start()
    eventually_sync(lambda: process.poll() is not None or waiting.ready() == "nobody listens", 30.0)
    process.terminate()
    assert process.wait(60) in (0, -signal.SIGTERM)
