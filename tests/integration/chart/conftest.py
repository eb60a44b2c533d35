"""Helm, where it is: on PATH, or among the tools of the folder that DRUMROLL_CLUSTER names."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "deploy/helm/drumroll"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a Helm on PATH these tests need the cluster's tools, so they run where those have been made."""
    if shutil.which("helm") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker("cluster")


Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Rendered:
    """Objects of the chart."""

    objects: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.objects if item["kind"] == kind]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        [found] = [item for item in self.of_kind(kind) if item["metadata"]["name"] == name]
        return found

    @property
    def pod_specs(self) -> list[dict[str, Any]]:
        """The specs of all pods that the chart makes, by whatever kind."""
        bare = [item["spec"] for item in self.of_kind("Pod")]
        return bare + [item["spec"]["template"]["spec"] for item in self.of_kind("Deployment")]

    @property
    def settings(self) -> Any:
        """The operator's settings file."""
        return yaml.safe_load(self.one("ConfigMap", "drumroll-operator")["data"]["settings.yaml"])

    @property
    def job_images(self) -> dict[str, str]:
        """Images of jobs' pods by role."""
        return {role: image["reference"] for role, image in self.settings["images"].items()}

    @property
    def images(self) -> list[str]:
        """Of the chart's own pods, and those that jobs get."""
        own = [container["image"] for spec in self.pod_specs for container in spec["containers"]]
        return own + list(self.job_images.values())


@dataclass(frozen=True)
class Chart:
    """The chart, and what Helm makes of it."""

    helm_path: str
    environment: dict[str, str] = field(repr=False)
    path: Path = CHART
    seen: dict[str, Rendered] = field(default_factory=dict, repr=False)

    def helm(self, *arguments: str, values: Any = None, env: Mapping[str, str] | None = None) -> Done:
        """A finished process; `values` go through a file, as a user's would."""
        text = None if values is None else json.dumps(values)
        command = [self.helm_path, *arguments, *([] if values is None else ["--values", "-"])]
        return subprocess.run(
            command, env={**self.environment, **(env or {})}, input=text, capture_output=True, text=True, check=False
        )

    def render(self, *arguments: str, values: Any = None, again: bool = False) -> Rendered:
        """All objects, tests and hooks included. The same question gets the same answer, unless asked `again`."""
        question = json.dumps([arguments, values])
        if again or question not in self.seen:
            done = self.helm("template", "drumroll", str(self.path), "-n", "drumroll-system", *arguments, values=values)
            assert done.returncode == 0, done.stderr
            self.seen[question] = Rendered([item for item in yaml.safe_load_all(done.stdout) if item])
        return self.seen[question]

    def refusal(self, *arguments: str, values: Any = None) -> str:
        """What Helm says of values that it does not take."""
        done = self.helm("template", "drumroll", str(self.path), *arguments, values=values)
        assert done.returncode != 0, "nothing was refused"
        return done.stderr


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Chart:
    home = tmp_path_factory.mktemp("helm")
    homes = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    return Chart(_helm(), {**os.environ, **homes})


def _helm() -> str:
    found = shutil.which("helm")
    if found is None and "DRUMROLL_CLUSTER" in os.environ:
        script = '. "$0/lib.sh"; echo "$BIN"'
        shown = subprocess.run(
            ["bash", "-c", script, os.environ["DRUMROLL_CLUSTER"]], capture_output=True, text=True, check=True
        )
        found = shutil.which("helm", path=shown.stdout.strip())
    if found is None:
        pytest.skip("there is no helm on PATH, nor among the tools that DRUMROLL_CLUSTER names")
    return found
