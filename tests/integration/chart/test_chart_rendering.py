"""What is rendered: the restricted profile, two renders alike, the definition of RLJobs, and each switch's effect."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
MONITORS = ("--api-versions", "monitoring.coreos.com/v1/PodMonitor")
BUSY: dict[str, Any] = {
    "commonLabels": {"team": "rl", "app.kubernetes.io/name": "may-not-win"},
    "imagePullSecrets": [{"name": "regcred"}],
    "operator": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d", "app.kubernetes.io/component": "may-not-win"},
        "env": [{"name": "HTTPS_PROXY", "value": "proxy.example:3128"}],
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"monitoring": "yes"}}}]},
    },
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: as-text}\n",
    ],
}


@pytest.mark.parametrize("values", [{}, BUSY, {"watchNamespaces": ["a", "b"]}, {"crds": {"enabled": False}}])
def test_two_renders_differ_in_the_new_key_alone(chart: Any, values: Any) -> None:
    first, second = (chart.render(*MONITORS, values=values, again=True).objects for _ in range(2))
    key = [item for item in first if item["kind"] == "Secret"]
    assert [item for item in first if item not in second] == key
    own = {**values, "derivationKey": {"existingSecret": "mine"}}
    assert chart.render(*MONITORS, values=own, again=True) == chart.render(*MONITORS, values=own, again=True)


@pytest.mark.parametrize("values", [{}, BUSY])
def test_every_pod_is_restricted_and_small(chart: Any, values: Any) -> None:
    for spec in chart.render(values=values).pod_specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        assert not any("hostPath" in volume for volume in spec["volumes"])
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_what_concerns_the_operators_pod_reaches_it(chart: Any) -> None:
    deployment = chart.render(values=BUSY).one("Deployment", "drumroll-operator")
    template = deployment["spec"]["template"]
    wanted = {key: BUSY["operator"][key] for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName")}
    assert {key: template["spec"][key] for key in wanted} == wanted
    assert template["spec"]["topologySpreadConstraints"] == BUSY["operator"]["topologySpreadConstraints"]
    assert template["spec"]["containers"][0]["env"] == BUSY["operator"]["env"]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["metadata"]["labels"] | {"c": "d", "team": "rl"} == template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_the_platforms_own_users_are_left_to_it_or_written_in_full(chart: Any) -> None:
    none = {"operator": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}}
    for spec in chart.render(values=none).pod_specs:
        assert set(spec["securityContext"]) == {"runAsNonRoot", "seccompProfile"}
    large = {"operator": {"podSecurityContext": {"runAsUser": 1000680000}}}
    for spec in chart.render(values=large).pod_specs:
        assert spec["securityContext"]["runAsUser"] == 1000680000


def test_common_labels_are_on_every_object_and_take_no_own_label(chart: Any) -> None:
    own = [item for item in chart.render(*MONITORS, values=BUSY).objects if "more" not in item["metadata"]["name"]]
    for item in own:
        if item["metadata"]["name"] != "as-text":
            assert item["metadata"]["labels"]["team"] == "rl", item["metadata"]["name"]
            assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "drumroll"


def test_further_objects_may_use_templates(chart: Any) -> None:
    rendered = chart.render(values=BUSY)
    assert rendered.one("ConfigMap", "drumroll-more")
    assert rendered.one("ConfigMap", "as-text")


def test_settings_that_change_roll_the_operator_and_others_do_not(chart: Any) -> None:
    def template(values: Any) -> Any:
        return chart.render(values=values).one("Deployment", "drumroll-operator")["spec"]["template"]

    assert template({"jobs": {"defaultClaim": "claim"}}) != template({})
    assert template({"operator": {"podDisruptionBudget": {"enabled": False}}}) == template({})
    assert template({"jobs": {"defaultClaim": "claim"}})["spec"] == template({})["spec"]


def test_the_definition_is_the_generated_one_and_is_kept(chart: Any) -> None:
    generated = yaml.safe_load((ROOT / "deploy/crd/rljobs.drumroll.dev.yaml").read_text())
    rendered = chart.render().one("CustomResourceDefinition", "rljobs.drumroll.dev")
    assert rendered["spec"] == generated["spec"]
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert rendered["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    loose = chart.render(values={"crds": {"keep": False}}).one("CustomResourceDefinition", "rljobs.drumroll.dev")
    assert "annotations" not in loose["metadata"]
    assert not chart.render(values={"crds": {"enabled": False}}).of_kind("CustomResourceDefinition")


def test_a_pod_monitor_needs_its_kind_in_the_cluster(chart: Any) -> None:
    on = {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
    [monitor] = chart.render(*MONITORS, values=on).of_kind("PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    deployment = chart.render(values=on).one("Deployment", "drumroll-operator")
    ports = [port["name"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]]
    assert [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == ports
    assert monitor["spec"]["selector"] == deployment["spec"]["selector"]
    assert not chart.render(values=on).of_kind("PodMonitor")
    assert "this cluster has no PodMonitors" in _notes(chart, on)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "image.registry is empty"),
        ({}, "tls.enabled is false"),
        ({"crds": {"enabled": False}}, "crds.enabled is false"),
        ({"watchNamespaces": ["team-a"]}, "namespace: team-a"),
    ],
)
def test_the_notes_say_the_next_command_and_warn(chart: Any, values: Any, said: str) -> None:
    notes = _notes(chart, values)
    assert said in notes
    assert "kubectl apply -f -" in notes
    assert "helm test" in notes


def test_a_careful_installation_gets_no_warning(chart: Any) -> None:
    values = {"image": {"registry": "registry.example"}, "tls": {"enabled": True}, "jobs": {"defaultClaim": "c"}}
    assert "WARNING" not in _notes(chart, values)


def test_the_job_in_the_notes_is_one(chart: Any) -> None:
    from drumroll.api import spec

    notes = _notes(chart, {})
    document = notes.partition("<<END\n")[2].partition("  END\n")[0]
    spec.RLJob.model_validate(yaml.safe_load(document))


def test_chart_and_package_have_one_version(chart: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = yaml.safe_load((chart.path / "Chart.yaml").read_text())
    assert metadata["version"] == metadata["appVersion"] == project["version"]
    images = yaml.safe_load(metadata["annotations"]["artifacthub.io/images"])
    rendered = chart.render()
    named = set(rendered.images)
    assert {entry["image"] for entry in images} == named


def _notes(chart: Any, values: Any) -> str:
    done = chart.helm("install", "drumroll", str(chart.path), "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.partition("NOTES:")[2])
