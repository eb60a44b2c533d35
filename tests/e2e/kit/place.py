"""Where a test's job runs: a namespace that enforces the restricted profile, with a claim on the tests' one volume."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kit.kube import SLOW_S, ApiError, Kube, Object, is_true, patiently

USER = 10001
"""Of all pods, by the operator's default."""
CLAIM = "drumroll"
MOUNT = "/var/lib/drumroll"
"""Where job pods see the volume, and the workbench too."""
_RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@dataclass(frozen=True)
class Place:
    """A namespace."""

    kube: Kube
    namespace: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def jobs_path(self) -> str:
        return f"/apis/drumroll.dev/v1alpha1/namespaces/{self.namespace}/rljobs"

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.kube.kubectl("-n", self.namespace, *arguments, **options)

    def apply(self, *manifests: Object | str) -> str:
        return self.kube.apply(*manifests, namespace=self.namespace)

    def pods(self, selector: str = "") -> list[Object]:
        return self.kube.pods(self.namespace, selector)

    def events(self) -> list[Object]:
        """Of the events.k8s.io API, oldest first."""
        found = self.kube.items(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return sorted(found, key=lambda event: event["metadata"]["creationTimestamp"])

    def secret(self, name: str, values: Mapping[str, str]) -> None:
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(values)})

    def remove(self, *, wait: bool = False) -> None:
        """Delete the namespace and its volume object; the files stay."""
        self.kube.delete(self.path)
        self.kube.delete(f"/api/v1/persistentvolumes/{self.namespace}")
        if wait:
            patiently(lambda: self.kube.get(self.path) is None, SLOW_S, f"namespace {self.namespace} is gone")

    def story(self, lines: int = 25) -> str:
        """All that tells why something does not work: jobs, pods, events, last words."""
        parts = [f"=== namespace {self.namespace}"]
        try:
            parts += [_job_story(job) for job in self.kube.items(self.jobs_path)]
            pods = self.pods()
            parts.append(self.kubectl("get", "pods,persistentvolumeclaims", "-o", "wide", check=False))
            parts += [_event_story(event) for event in self.events()[-40:]]
            for pod in pods:
                parts.append(f"--- {pod['metadata']['name']}: {json.dumps(pod['status'].get('containerStatuses'))}")
                logs = ("logs", pod["metadata"]["name"], "--all-containers", "--prefix", f"--tail={lines}")
                parts.append(self.kubectl(*logs, check=False))
        except (ApiError, OSError, AssertionError) as error:
            parts.append(f"(and then: {error})")
        return "\n".join(parts)


def make_place(kube: Kube, namespace: str, *, host_path: str) -> Place:
    """The namespace, ready for jobs."""
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"drumroll.dev/e2e": "true", **_RESTRICTED}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace, "labels": {"drumroll.dev/e2e": "true"}},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": host_path},
                "claimRef": {"namespace": namespace, "name": CLAIM},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": namespace,
                "resources": {"requests": {"storage": "10Gi"}},
            },
        },
    )
    place = Place(kube, namespace)
    patiently(lambda: kube.get(f"{place.path}/serviceaccounts/default"), SLOW_S, "the default service account")
    return place


def restricted_pod(name: str, image: str, command: list[str], **spec: Any) -> Object:
    """A pod as job pods are: another user than root, a read-only root, no token, the claim mounted."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"drumroll.dev/e2e": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [
                {"name": "volume", "persistentVolumeClaim": {"claimName": CLAIM}},
                {"name": "tmp", "emptyDir": {}},
            ],
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": command,
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "volumeMounts": [{"name": "volume", "mountPath": MOUNT}, {"name": "tmp", "mountPath": "/tmp"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            **spec,
        },
    }


@dataclass(frozen=True)
class Workbench:
    """A long-lived pod that sees the volume: it makes what jobs need and audits what they leave."""

    place: Place

    @classmethod
    def open(cls, place: Place, image: str) -> "Workbench":
        command = ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]
        place.apply(restricted_pod("workbench", image, command, restartPolicy="Always"))
        pod = f"{place.path}/pods/workbench"
        patiently(lambda: is_true(place.kube.get(pod), "Ready"), SLOW_S, lambda: f"workbench ready\n{place.story()}")
        return cls(place)

    def run(self, *command: str, text: str | None = None, check: bool = True, deadline_s: float = SLOW_S) -> str:
        """A command in the pod."""
        options: dict[str, Any] = {"text": text, "check": check, "deadline_s": deadline_s}
        return self.place.kube.execute(self.place.namespace, "workbench", *command, **options)

    def python(self, code: str, *arguments: str) -> str:
        """A Python program in the pod."""
        return self.run("python", "-", *arguments, text=code)

    def write(self, path: str, content: str) -> None:
        """A file on the volume, by its path there."""
        code = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.parent.mkdir(parents=True, exist_ok=True); "
        self.run("python", "-c", code + "p.write_text(sys.stdin.read())", f"{MOUNT}/{path}", text=content)

    def audit(self, job_dir: str) -> dict[str, Any]:
        """What `drumroll audit --json` says of a job's folder."""
        said = self.run("drumroll", "audit", "--json", job_dir, check=False)
        assert said.lstrip().startswith("{"), said
        report: dict[str, Any] = json.loads(said[: said.rindex("}") + 1])
        return report


def _job_story(job: Object) -> str:
    status = job.get("status", {})
    lines = [
        f"--- rljob {job['metadata']['name']}: {json.dumps({k: v for k, v in status.items() if k != 'conditions'})}"
    ]
    for condition in status.get("conditions", []):
        lines.append("    {type}={status} {reason}: {message}".format(**{"reason": "", "message": "", **condition}))
    return "\n".join(lines)


def _event_story(event: Object) -> str:
    what = event.get("regarding", {})
    count = event.get("series", {}).get("count", 1)
    return f"    event {what.get('kind')}/{what.get('name')} x{count} {event.get('reason')}: {event.get('note')}"
