"""The chart on a real API server: every object is taken; installing, upgrading and uninstalling keep what they must."""

import base64
import copy
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

NAMESPACE = "drumroll-chart-tests"
RELEASE = "drumroll"
MONITORS = ("--api-versions", "monitoring.coreos.com/v1/PodMonitor")
EVERYTHING: Any = {
    "commonLabels": {"team": "rl"},
    "imagePullSecrets": [{"name": "regcred"}],
    "jobs": {"defaultClaim": "claim", "podSecurity": {"runAsUser": None}},
    "operator": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "priorityClassName": "system-cluster-critical",
        "env": [{"name": "HTTPS_PROXY", "value": "proxy.example:3128"}],
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"monitoring": "yes"}}}]},
    },
    "tls": {"enabled": True},
}

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def site(chart: Any, api_server: Any) -> Iterator["Site"]:
    site = Site(chart, api_server)
    assert site.kubectl("create", "namespace", NAMESPACE).returncode == 0
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    assert site.kubectl("label", "namespace", NAMESPACE, restricted).returncode == 0
    try:
        yield site
    finally:
        site.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


class Site:
    """A namespace of the API server, and Helm in it. The test session's own RLJob definition stays as it is."""

    def __init__(self, chart: Any, server: Any) -> None:
        self.chart, self._server = chart, server

    def kubectl(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = self._server.kubectl("-n", NAMESPACE, *arguments, text=text)
        return done

    def helm(self, command: str, *arguments: str, values: Any = None) -> Any:
        where = () if command == "uninstall" else (str(self.chart.path), "--set=crds.enabled=false")
        return self.chart.helm(
            command, RELEASE, *where, "-n", NAMESPACE, *arguments, values=values, env=self._server.environment
        )

    def get(self, kind: str, name: str) -> Any:
        shown = self.kubectl("get", kind, name, "-o", "json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def may(self, verb: str, resource: str, *where: str) -> bool:
        account = f"system:serviceaccount:{NAMESPACE}:drumroll-operator"
        asked = self.kubectl("auth", "can-i", verb, resource, f"--as={account}", *where)
        assert asked.stdout.strip() in ("yes", "no"), asked.stderr
        return asked.stdout.strip() == "yes"


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"watchNamespaces": [NAMESPACE]}])
def test_a_restricted_namespace_takes_every_object_to_the_last_field(site: Site, values: Any) -> None:
    rendered = list(site.chart.render("--no-hooks", values={**values, "crds": {"enabled": False}}).objects)
    rendered += site.chart.render("--show-only", "templates/tests/check.yaml", values=values).objects
    # Deployments are not held to the profile, their pods are.
    templates = [item["spec"]["template"] for item in rendered if item["kind"] == "Deployment"]
    rendered += [
        {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {"name": "pod", "namespace": ""}}
        for template in templates
    ]
    objects = [_into(item, NAMESPACE) for item in rendered]
    for pod in (item["spec"] for item in objects if item["kind"] == "Pod"):
        pod["serviceAccountName"] = "default"  # A dry run makes no account, and a pod's must be there.
    text = yaml.safe_dump_all(objects)
    done = site.kubectl("apply", "--dry-run=server", "--server-side", "--validate=strict", "-f", "-", text=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("serverside-applied") == len(rendered)


def test_the_key_outlives_upgrades_and_a_key_of_ones_own_replaces_it_h6(site: Site) -> None:
    done = site.helm("install")
    assert done.returncode == 0, done.stderr
    try:
        made, pods = site.get("secret", "drumroll-operator-key"), site.get("deployment", "drumroll-operator")["spec"]
        assert len(base64.b64decode(made["data"]["key"]).strip()) == 64

        done = site.helm("upgrade", "--set", "operator.podDisruptionBudget.maxUnavailable=2")
        assert done.returncode == 0, done.stderr
        assert site.get("secret", "drumroll-operator-key")["data"] == made["data"]
        assert site.get("deployment", "drumroll-operator")["spec"] == pods
        assert site.get("poddisruptionbudget", "drumroll-operator")["spec"]["maxUnavailable"] == 2

        _another_key_is_refused(site)
        _a_key_of_ones_own(site)
    finally:
        assert site.helm("uninstall").returncode == 0
    assert site.get("secret", "drumroll-operator-key")["data"] == made["data"]
    assert site.kubectl("get", "deployment", "drumroll-operator").returncode != 0


def _another_key_is_refused(site: Site) -> None:
    """As a renderer that cannot look the key up would make it."""
    [offline] = site.chart.render(again=True).of_kind("Secret")
    done = site.kubectl("apply", "-f", "-", text=yaml.safe_dump(_into(offline, NAMESPACE)))
    assert done.returncode != 0
    assert "immutable" in done.stderr


def _a_key_of_ones_own(site: Site) -> None:
    literals = ("--from-literal=token=" + "a1" * 32, "--from-literal=short=abc")
    assert site.kubectl("create", "secret", "generic", "mine", *literals).returncode == 0
    own = ("--set", "derivationKey.existingSecret=mine", "--set")

    missing = site.helm("upgrade", *own, "derivationKey.key=absent")
    assert missing.returncode != 0
    assert f'the Secret {NAMESPACE}/mine has no key "absent", only: short, token' in missing.stderr
    short = site.helm("upgrade", *own, "derivationKey.key=short")
    assert "is shorter than 32 bytes" in short.stderr

    done = site.helm("upgrade", *own, "derivationKey.key=token")
    assert done.returncode == 0, done.stderr
    template = site.get("deployment", "drumroll-operator")["spec"]["template"]["spec"]
    [key] = [volume["secret"] for volume in template["volumes"] if volume["name"] == "key"]
    assert (key["secretName"], key["items"]) == ("mine", [{"key": "token", "path": "key"}])
    assert (
        "kind: Secret"
        not in site.chart.helm("get", "manifest", RELEASE, "-n", NAMESPACE, env=site._server.environment).stdout
    )


def test_a_secret_that_is_not_there_yet_is_said(site: Site) -> None:
    done = site.helm("install", "--dry-run=server", "--set", "derivationKey.existingSecret=later")
    assert done.returncode == 0, done.stderr
    assert f"there is no Secret {NAMESPACE}/later yet" in done.stdout


def test_rights_of_the_whole_cluster_are_these_alone(site: Site) -> None:
    assert site.helm("install").returncode == 0
    try:
        assert site.may("watch", "rljobs.drumroll.dev", "--all-namespaces")
        assert site.may("create", "pods", "--all-namespaces")
        assert site.may("patch", "rljobs.drumroll.dev", "--subresource=status", "--all-namespaces")
        assert site.may("update", "lease/drumroll-operator")
        for verb, resource in [
            ("get", "secrets"),
            ("list", "secrets"),
            ("create", "leases"),
            ("update", "lease/another"),
            ("create", "rljobs.drumroll.dev"),
            ("get", "nodes"),
            ("list", "namespaces"),
            ("create", "roles"),
        ]:
            assert not site.may(verb, resource), (verb, resource)
        assert not site.may("create", "pods", "--subresource=exec")
    finally:
        site.helm("uninstall")


def test_a_namespaced_installation_has_no_right_in_the_cluster_k8(site: Site) -> None:
    values = {"watchNamespaces": [NAMESPACE], "rbac": {"aggregateRoles": False}}
    done = site.helm("install", values=values)
    assert done.returncode == 0, done.stderr
    try:
        assert site.may("watch", "rljobs.drumroll.dev")
        assert site.may("create", "pods")
        for verb, resource in [("list", "rljobs.drumroll.dev"), ("list", "pods"), ("create", "pods")]:
            assert not site.may(verb, resource, "--all-namespaces"), (verb, resource)
            assert not site.may(verb, resource, "-n", "default"), (verb, resource)
    finally:
        site.helm("uninstall")


def test_the_definition_comes_with_the_release_and_stays_when_it_goes(site: Site) -> None:
    name = "rljobs.drumroll.dev"
    before = site.get("crd", name)["metadata"]["uid"]
    done = site.helm("install", "--set=crds.enabled=true", "--take-ownership", "--force-conflicts")
    assert done.returncode == 0, done.stderr
    assert site.get("crd", name)["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE
    assert site.helm("uninstall").returncode == 0
    assert site.get("crd", name)["metadata"]["uid"] == before


def _into(item: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The object in another namespace, if it is in one."""
    moved = copy.deepcopy(item)
    if "namespace" in moved["metadata"]:
        moved["metadata"]["namespace"] = namespace
    return moved
