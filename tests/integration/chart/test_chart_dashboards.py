"""The operator's dashboard asks for what the operator says (case M2), and the chart hands it over unchanged."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drumroll_operator.app import Operator
from drumroll_operator.memory_api import MemoryApi
from drumroll_operator.memory_cluster import MemoryCluster
from drumroll_operator.metrics import Metrics
from drumroll_operator.rendering import Renderer
from drumroll_operator.settings import OperatorSettings
from prometheus_client.parser import text_string_to_metric_families

from drumroll.clock import SystemClock

FILE = Path(__file__).parents[3] / "deploy/helm/drumroll/files/dashboards/operator.json"
OF_PROMETHEUS = {"namespace", "pod", "container", "le"}
"""Labels that the scrape adds, and that of histograms."""

JOB: Any = {
    "apiVersion": "drumroll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {
        "name": "job",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {},
}


@pytest.fixture
def board() -> Any:
    return json.loads(FILE.read_text())


def test_every_metric_and_label_is_one_of_the_operators_m2(board: Any) -> None:
    said = _exposed()
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [entry["query"] for entry in board["templating"]["list"] if entry["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"\b(?:drumroll|process)_\w+", query)}
    assert asked <= set(said)
    assert {name for name in said if name.startswith("drumroll_operator")} - asked <= _unused(said)
    for query in queries:
        for name in re.findall(r"\b(?:drumroll|process)_\w+", query):
            labels = set(re.findall(r"by \(([^)]*)\)", query)[0].split(", ")) if " by (" in query else set()
            labels |= set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", query))
            assert labels <= said[name] | OF_PROMETHEUS, query


def test_every_panel_says_what_it_shows_and_nothing_is_bound_to_one_prometheus(board: Any) -> None:
    assert all(panel["description"] and panel["title"] for panel in board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"])
    assert "://" not in FILE.read_text()


def test_the_chart_hands_it_over_where_it_is_asked_to(chart: Any) -> None:
    assert not [item for item in chart.render().of_kind("ConfigMap") if "dashboard" in item["metadata"]["name"]]
    rendered = chart.render(values={"dashboards": {"enabled": True}})
    item = rendered.one("ConfigMap", "drumroll-dashboard-operator")
    assert item["data"] == {"operator.json": FILE.read_text()}
    assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert item["metadata"]["annotations"] == {"grafana_folder": "Drumroll"}


def _exposed() -> dict[str, set[str]]:
    """Names with their labels on the page of an operator that has done one of everything."""
    metrics = Metrics()
    metrics.reconciled("ok", 0.1)
    metrics.waited(0.1)
    metrics.acted("create ok", 0.1)
    metrics.requested("create", "pods", 201)
    metrics.gauge("leads", "As in the main module.", (), lambda: [((), 1.0)])
    images = {role: {"reference": f"drumroll-{role}:1"} for role in ("scheduler", "rollout", "trainer")}
    settings = OperatorSettings.model_validate({"images": images})
    cluster = MemoryCluster(MemoryApi(SystemClock()))
    operator = Operator(cluster, Renderer(settings, b"k" * 32), namespaces=[], identity="test", metrics=metrics)
    operator.jobs.changed(JOB)
    return _series(metrics.page)


def _series(page: Callable[[], bytes]) -> dict[str, set[str]]:
    families = text_string_to_metric_families(page().decode())
    series: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def _unused(said: dict[str, set[str]]) -> set[str]:
    """What no panel needs."""
    parts = {name for name in said if name.endswith(("_created", "_sum", "_count", "_bucket"))}
    return parts | {"drumroll_operator_watch_missing_seconds", "drumroll_operator_scheduler_polls"}
