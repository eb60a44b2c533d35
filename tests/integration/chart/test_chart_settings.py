"""What the chart renders for the operator is what the operator reads, and it reaches the pods of jobs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from drumroll_operator.pods import pod
from drumroll_operator.resolve import resolve
from drumroll_operator.settings import OperatorSettings
from drumroll_operator.substrate import ROLES

from drumroll.api.spec import RLJob

PRIVATE: Any = {
    "imagePullSecrets": [{"name": "regcred"}],
    "image": {"registry": "reg.example.test:5000/mirror", "tag": "20260101", "pullPolicy": "Always"},
    "jobs": {
        "defaultClaim": "files",
        "networkPolicies": False,
        "podSecurity": {"runAsUser": None, "fsGroup": 1000680000},
    },
    "clusterDomain": "example.local",
    "tls": {"enabled": True},
    "watchNamespaces": ["team-a"],
}
JOB: Any = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "job", "namespace": "team-a", "uid": "b0c5c3a4-0000-4000-8000-000000000001"},
    "spec": {
        "model": {"path": "models/tiny"},
        "data": {"train": {"path": "data/train.jsonl"}, "maxPromptTokens": 64, "maxResponseTokens": 64},
        "reward": {"type": "math"},
        "imagePullSecrets": [{"name": "own"}, {"name": "regcred"}],
    },
}


@pytest.mark.parametrize("values", [{}, PRIVATE])
def test_the_operator_reads_every_setting(chart: Any, tmp_path: Path, values: Any) -> None:
    rendered = chart.render(values=values)
    settings = _read(rendered, tmp_path)
    volumes = {mount["name"]: mount["mountPath"] for mount in rendered.pod_specs[1]["containers"][0]["volumeMounts"]}
    assert str(settings.key_file) == f"{volumes['key']}/key"
    assert settings.operator_namespace == "drumroll-system"
    deployment = rendered.one("Deployment", "drumroll-operator")
    assert settings.operator_labels == deployment["spec"]["selector"]["matchLabels"]
    assert set(rendered.settings) == {field.alias for field in OperatorSettings.model_fields.values()}


def test_values_arrive_under_their_names(chart: Any, tmp_path: Path) -> None:
    settings = _read(chart.render(values=PRIVATE), tmp_path)
    assert (settings.default_claim, settings.cluster_domain) == ("files", "example.local")
    assert (settings.network_policies, settings.tls) == (False, True)
    assert settings.watch_namespaces == ["team-a"]
    security = settings.pod_security
    assert (security.run_as_user, security.run_as_group, security.fs_group) == (None, 10001, 1000680000)


def test_pods_of_a_job_come_from_the_private_registry_with_its_secret_h2_h4(chart: Any, tmp_path: Path) -> None:
    settings = _read(chart.render(values=PRIVATE), tmp_path)
    job = resolve(RLJob.model_validate(JOB), settings)
    for role in ROLES:
        spec = pod(job, settings, role)["spec"]
        assert spec["imagePullSecrets"] == [{"name": "regcred"}, {"name": "own"}], role
        for container in spec["containers"] + spec.get("initContainers", []):
            image = "scheduler" if role == "store" else role
            assert container["image"] == f"reg.example.test:5000/mirror/drumroll-{image}:20260101"
            assert container["imagePullPolicy"] == "Always"


def _read(rendered: Any, tmp_path: Path) -> OperatorSettings:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(rendered.settings))
    return OperatorSettings.load(file)
