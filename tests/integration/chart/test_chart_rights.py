"""Rights: what each mode gives, and what neither ever does."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs/rbac.md"

NAMESPACED = {"watchNamespaces": ["team-a", "team-b"]}


def test_cluster_mode_gives_one_cluster_role(chart: Any) -> None:
    rendered = chart.render()
    rules = rendered.one("ClusterRole", "drumroll-operator")["rules"]
    [binding] = rendered.of_kind("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "drumroll-operator"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "drumroll-operator", "namespace": "drumroll-system"}
    ]
    assert _rights(rules)["pods"] >= {"get", "list", "watch", "create", "delete"}


def test_the_page_about_rights_lists_them(chart: Any) -> None:
    rendered = chart.render()
    roles = rendered.one("ClusterRole", "drumroll-operator"), rendered.one("Role", "drumroll-operator-leader")
    rules = [rule for role in roles for rule in role["rules"]]
    section = PAGE.read_text().partition("## What the operator has")[2].partition("\n## ")[0]
    told: dict[str, set[str]] = {}
    for resources, verbs in re.findall(r"^\| (`.*?) \| (\w[\w, ]*) \|", section, re.MULTILINE):
        told |= {resource: set(verbs.split(", ")) for resource in re.findall(r"`([^`]+)`", resources)}
    assert told == _rights(rules)


def test_namespace_mode_gives_no_right_in_the_cluster_k8(chart: Any) -> None:
    cluster, rendered = chart.render(), chart.render(values=NAMESPACED)
    assert rendered.of_kind("ClusterRoleBinding") == []
    assert {role["metadata"]["name"] for role in rendered.of_kind("ClusterRole")} == {"drumroll-edit", "drumroll-view"}
    roles = [role for role in rendered.of_kind("Role") if role["metadata"]["name"] == "drumroll-operator"]
    assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b"}
    assert all(role["rules"] == cluster.one("ClusterRole", "drumroll-operator")["rules"] for role in roles)
    assert rendered.settings["watchNamespaces"] == ["team-a", "team-b"]


@pytest.mark.parametrize("values", [{}, NAMESPACED])
def test_every_role_is_bound_where_it_is(chart: Any, values: Any) -> None:
    rendered = chart.render(values=values)
    roles = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in rendered.of_kind("Role")}
    bound = {(b["metadata"]["namespace"], b["roleRef"]["name"]) for b in rendered.of_kind("RoleBinding")}
    assert roles == bound


@pytest.mark.parametrize("values", [{}, NAMESPACED])
def test_no_secret_is_read_and_no_right_is_a_wildcard(chart: Any, values: Any) -> None:
    rendered = chart.render(values=values)
    for role in rendered.of_kind("Role") + rendered.of_kind("ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            if "secrets" in rule["resources"]:
                assert not {"get", "list", "watch"} & set(rule["verbs"])


def test_the_lease_is_made_here_and_the_right_is_for_it_alone(chart: Any) -> None:
    rendered = chart.render()
    [lease] = rendered.of_kind("Lease")
    [rule] = rendered.one("Role", "drumroll-operator-leader")["rules"]
    assert rule["resourceNames"] == [lease["metadata"]["name"]]
    assert "create" not in rule["verbs"]
    arguments = rendered.pod_specs[1]["containers"][0]["args"]
    assert f"--lease=drumroll-system/{lease['metadata']['name']}" in arguments


def test_users_get_rljob_rights_by_the_clusters_own_roles(chart: Any) -> None:
    rendered = chart.render()
    view, edit = (rendered.one("ClusterRole", f"drumroll-{name}") for name in ("view", "edit"))
    assert _aggregated(view) == {"view", "edit", "admin"}
    assert _aggregated(edit) == {"edit", "admin"}
    assert _rights(view["rules"])["rljobs"] == {"get", "list", "watch"}
    assert "rljobs/status" not in _rights(edit["rules"])
    assert not chart.render(values={"rbac": {"aggregateRoles": False}, **NAMESPACED}).of_kind("ClusterRole")


def test_rights_and_accounts_can_be_ones_own(chart: Any) -> None:
    values = {"serviceAccount": {"create": False, "name": "mine"}, "rbac": {"create": False, "aggregateRoles": False}}
    rendered = chart.render("--no-hooks", values=values)
    for kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
        assert rendered.of_kind(kind) == []
    [spec] = rendered.pod_specs
    assert spec["serviceAccountName"] == "mine"


def test_a_key_of_ones_own_is_used_and_none_is_made_h6(chart: Any) -> None:
    values = {"derivationKey": {"existingSecret": "mine", "key": "token"}}
    rendered = chart.render("--no-hooks", values=values)
    assert rendered.of_kind("Secret") == []
    volumes = {volume["name"]: volume for volume in rendered.pod_specs[0]["volumes"]}
    assert volumes["key"]["secret"]["secretName"] == "mine"
    assert volumes["key"]["secret"]["items"] == [{"key": "token", "path": "key"}]


def _rights(rules: Any) -> dict[str, set[str]]:
    rights: dict[str, set[str]] = {}
    for rule in rules:
        for resource in rule["resources"]:
            rights.setdefault(resource, set()).update(rule["verbs"])
    return rights


def _aggregated(role: Any) -> set[str]:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    return {label.removeprefix(prefix) for label in role["metadata"]["labels"] if label.startswith(prefix)}
