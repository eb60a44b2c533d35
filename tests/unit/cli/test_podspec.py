"""The subset of pod specs that runs here; everything else is refused by its name."""

import copy
from typing import Any

import pytest
from drumroll_cli.local.podspec import parse_pod

from drumroll.errors import UserError

POD: dict[str, Any] = {
    "metadata": {"name": "tiny-rollout-0", "labels": {"drumroll.dev/job": "tiny", "drumroll.dev/role": "rollout"}},
    "spec": {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 7,
        "volumes": [{"name": "run", "hostPath": {"path": "/r", "type": "DirectoryOrCreate"}}],
        "containers": [
            {
                "name": "rollout",
                "command": ["python", "-m", "x"],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                ],
                "volumeMounts": [{"name": "run", "mountPath": "/r"}],
                "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}},
                "livenessProbe": {"exec": {"command": ["python", "-m", "p"]}, "periodSeconds": 3},
            }
        ],
    },
}


def pod(**container: Any) -> dict[str, Any]:
    changed = copy.deepcopy(POD)
    changed["spec"]["containers"][0] |= container
    return changed


def test_a_pod_becomes_a_process() -> None:
    parsed = parse_pod(POD)
    assert (parsed.name, parsed.role, parsed.restart, parsed.grace_s) == ("rollout-0", "rollout", "OnFailure", 7.0)
    assert parsed.directories == ("/r",)
    container = parsed.container
    assert container.command == ("python", "-m", "x")
    assert (container.env, container.from_shell, container.gpus) == ({"A": "1"}, {"TOKEN": "TOKEN"}, 2)
    assert container.probe is not None
    assert (container.probe.command, container.probe.period_s, container.probe.failures) == (
        ("python", "-m", "p"),
        3,
        3,
    )


def test_an_http_probe_asks_this_machine() -> None:
    probe = parse_pod(pod(livenessProbe={"httpGet": {"port": 81, "path": "/healthz"}})).container.probe
    assert probe is not None
    assert probe.url == "http://127.0.0.1:81/healthz"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (pod(securityContext={"privileged": True}), "container rollout: .*securityContext"),
        (pod(args=["-v"], ports=[]), "args, ports"),
        (pod(livenessProbe={"grpc": {"port": 1}}), "livenessProbe: .*grpc"),
        (pod(volumeMounts=[{"name": "run", "mountPath": "/elsewhere"}]), "volume run must be mounted at its own path"),
        (pod(volumeMounts=[{"name": "run", "mountPath": "/r", "subPath": "x"}]), "subPath"),
        (POD | {"spec": POD["spec"] | {"hostNetwork": True}}, "pod tiny-rollout-0: .*hostNetwork"),
        (POD | {"spec": POD["spec"] | {"containers": POD["spec"]["containers"] * 2}}, "exactly one container"),
        (POD | {"spec": POD["spec"] | {"volumes": [{"name": "run", "emptyDir": {}}]}}, "volume run is a emptyDir"),
    ],
)
def test_what_is_not_supported_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_pod(changed)


def test_a_reference_to_anything_but_a_secret_is_refused() -> None:
    field = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    with pytest.raises(UserError, match=r"variable IP: .*fieldRef"):
        parse_pod(pod(env=[field]))
