"""RLJobs of the tests: the replay engine on a model of 14,000 parameters, cheap enough for several at a time."""

import random
import re
import string
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kit.kube import SLOW_S, Object, conditions, is_true, patiently, uids
from kit.place import CLAIM, Place, Workbench

JOB_S = 400.0
"""For a job that takes half a minute on a quiet machine."""
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}}
SPEC: dict[str, Any] = {
    "model": {"path": "tiny/model", "dtype": "float32"},
    "data": {"train": {"path": "tiny/train.jsonl"}, "maxPromptTokens": 16, "maxResponseTokens": 24},
    "reward": {"type": "function", "function": "lengths:score"},
    "algorithm": {"groupSize": 2, "promptsPerStep": 2, "learningRate": 1e-3},
    "steps": 8,
    "rollout": {
        "maxConcurrentSamples": 16,
        "graceSeconds": 10,
        "resources": SMALL,
        "engine": {
            "type": "replay",
            "replay": {"medianTokens": 8, "sigma": 0.5, "stepSeconds": 0.02, "loadSeconds": 0.02},
        },
    },
    "trainer": {"checkpoint": {"everySteps": 2}, "threads": 1, "resources": SMALL},
    "scheduler": {"heartbeatSeconds": 0.5, "leaseSeconds": 8, "resources": SMALL},
    "stream": {"embedded": {"maxBytes": "64Mi"}},
    "weights": {"volume": {"persistentVolumeClaim": {"claimName": CLAIM}}},
}
SLOWLY = {"stepSeconds": 0.25, "stepSecondsPerSequence": 0.0}
"""Replay settings with which a step takes about two seconds: time to do something to the job."""
REWARD = '''"""Answers of an even number of characters are right."""


def score(completions, **columns):
    return [float(len(text) % 2 == 0) for text in completions]
'''
_MODEL = """
import json, pathlib
from drumroll_trainer.learner.tiny_model import make_tiny_model

folder = pathlib.Path("/var/lib/drumroll/tiny")
make_tiny_model(folder / "model", seed=0, hidden=32, layers=1, heads=1, max_tokens=128)
rows = [json.dumps({"prompt": f"{number}+1=", "answer": str(number + 1)}) for number in range(48)]
(folder / "train.jsonl").write_text("\\n".join(rows) + "\\n")
"""


def prepare(workbench: Workbench) -> None:
    """What all these jobs start from, on the volume."""
    workbench.python(_MODEL)
    workbench.write("lengths.py", REWARD)


@dataclass
class ClusterJob:
    """An RLJob in a namespace, and what can be done to it."""

    place: Place
    workbench: Workbench
    name: str
    spec: dict[str, Any]
    kill_container: Callable[[str, Object], None] = field(repr=False)
    """Pod name and pod object: end its first process at once."""

    @property
    def manifest(self) -> Object:
        return {
            "apiVersion": "drumroll.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": self.name},
            "spec": self.spec,
        }

    def apply(self) -> "ClusterJob":
        self.place.apply(self.manifest)
        return self

    # --- looking

    @property
    def path(self) -> str:
        return f"{self.place.jobs_path}/{self.name}"

    def get(self) -> Object:
        found = self.place.kube.get(self.path)
        assert found is not None, f"there is no job {self.name}"
        return found

    @property
    def status(self) -> Object:
        return dict(self.get().get("status", {}))

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def step(self) -> int:
        return int(self.status.get("step") or 0)

    def condition(self, kind: str) -> Object:
        """The condition, empty where it is not there."""
        return conditions(self.get()).get(kind, {})

    def pods(self, role: str | None = None) -> list[Object]:
        selector = f"drumroll.dev/job={self.name}" + (f",drumroll.dev/role={role}" if role else "")
        return self.place.pods(selector)

    def pod(self, name: str) -> Object | None:
        """A pod by the end of its name, such as rollout-0."""
        return self.place.kube.get(f"{self.place.path}/pods/{self.name}-{name}")

    def uids(self, role: str | None = None) -> dict[str, str]:
        return uids(self.pods(role))

    def log(self, name: str) -> str:
        return self.place.kubectl("logs", f"{self.name}-{name}", check=False)

    def reasons(self) -> dict[str, int]:
        """Reasons of the events about the job, and how often."""
        found: dict[str, int] = {}
        for event in self.place.events():
            if event.get("regarding", {}).get("name") == self.name:
                count = int((event.get("series") or {}).get("count", 1))
                found[event["reason"]] = found.get(event["reason"], 0) + count
        return found

    def story(self) -> str:
        return self.place.story()

    # --- waiting

    def wait(self, look: Callable[[], Any], what: str, deadline_s: float = SLOW_S) -> Any:
        """The first true value; the whole story where there is none."""
        return patiently(look, deadline_s, lambda: f"{what}\n{self.story()}")

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self._alive() and self.step >= step, f"{self.name} at step {step}", JOB_S)

    def wait_for_phase(self, phase: str, deadline_s: float = JOB_S) -> None:
        self.wait(lambda: self.phase == phase, f"{self.name} {phase}", deadline_s)

    def wait_for_condition(self, kind: str, status: str = "True", deadline_s: float = SLOW_S) -> Object:
        def found() -> Object | None:
            condition = self.condition(kind)
            return condition if condition.get("status") == status else None

        condition: Object = self.wait(found, f"{self.name} {kind}={status}", deadline_s)
        return condition

    def wait_for_pod(self, name: str, *, other_than: str | None = None, ready: bool = True) -> Object:
        """A pod, once it is there (again) and ready."""

        def found() -> Object | None:
            pod = self.pod(name)
            if pod is None or pod["metadata"]["uid"] == other_than or "deletionTimestamp" in pod["metadata"]:
                return None
            return pod if not ready or is_true(pod, "Ready") else None

        pod: Object = self.wait(found, f"pod {self.name}-{name}")
        return pod

    def wait_until_gone(self, name: str, uid: str) -> None:
        """That very pod object."""

        def gone() -> bool:
            pod = self.pod(name)
            return pod is None or pod["metadata"]["uid"] != uid

        self.wait(gone, f"pod {self.name}-{name} {uid} is gone")

    def _alive(self) -> bool:
        phase = self.phase
        assert phase != "Failed", f"{self.name} has failed\n{self.story()}"
        return True

    def complete(self, deadline_s: float = JOB_S) -> dict[str, Any]:
        """Wait for the end in order, and let the audit prove it; what the audit counted."""
        self.wait(lambda: self._alive() and self.phase == "Complete", f"{self.name} Complete", deadline_s)
        job = self.get()
        assert is_true(job, "Complete"), self.story()
        assert not is_true(job, "Failed"), self.story()
        assert job["status"]["step"] == job["status"]["steps"], self.story()
        report = self.workbench.audit(job["status"]["jobDir"])
        assert report["ok"], f"{report}\n{self.story()}"
        assert report["outcome"].lower() == "complete", report
        assert report["findings"] == [], report
        return report

    # --- doing

    def patch(self, spec: dict[str, Any]) -> Object:
        return self.place.kube.patch(self.path, {"spec": spec})

    def delete(self) -> None:
        self.place.kube.delete(self.path)

    def kill(self, name: str) -> str:
        """`kill -9` of a pod's first process; the pod's uid."""
        pod = self.wait_for_pod(name, ready=False)
        self.kill_container(f"{self.name}-{name}", pod)
        return str(pod["metadata"]["uid"])

    def delete_pod(self, name: str, *, grace_s: int | None = None) -> str:
        """The deleted pod's uid."""
        pod = self.wait_for_pod(name, ready=False)
        self.place.kube.delete(f"{self.place.path}/pods/{self.name}-{name}", grace_s=grace_s)
        return str(pod["metadata"]["uid"])

    def evict(self, name: str) -> str:
        """By the eviction API, as `kubectl drain` does; the pod's uid."""
        pod = self.wait_for_pod(name, ready=False)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": f"{self.name}-{name}"}}
        self.place.kube.request("POST", f"{self.place.path}/pods/{self.name}-{name}/eviction", body)
        return str(pod["metadata"]["uid"])

    def exhaust_memory(self, name: str, *, bytes_each: int = 48 << 20, processes: int = 40) -> None:
        """Many small processes fill the pod's memory, until the kernel ends the largest one: the pod's own."""
        code = (
            f"import os, time\nfor _ in range({processes}):\n"
            f"    if os.fork() == 0:\n        held = bytearray(os.urandom(1 << 20)) * {bytes_each >> 20}\n"
            "        time.sleep(20)\n        os._exit(0)\ntime.sleep(20)\n"
        )
        self.place.kubectl("exec", f"{self.name}-{name}", "--", "python", "-c", code, check=False)

    def table(self, *options: str) -> list[dict[str, str]]:
        """`kubectl get rlj`, a row a job."""
        lines = self.place.kubectl("get", "rlj", *options).splitlines()
        columns = [(match.group(), match.start()) for match in re.finditer(r"\S+", lines[0])]
        ends = [start for _, start in columns[1:]] + [None]
        return [
            {name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}
            for line in lines[1:]
        ]


def unique(prefix: str) -> str:
    """A name that no earlier run has used."""
    return f"{prefix}-{''.join(random.choices(string.ascii_lowercase + string.digits, k=5))}"


def in_background(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """A command that runs beside the test."""
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
