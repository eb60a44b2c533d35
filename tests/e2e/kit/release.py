"""The operator as a user installs it: by helm, from the chart of the checkout."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.images import Images
from kit.kube import SLOW_S, Kube, Object, is_true, patiently
from kit.shell import run

from drumroll.testing import merged

NAME = "drumroll"
NAMESPACE = "drumroll-system"


@dataclass
class Release:
    """A release of the chart."""

    kube: Kube
    images: Images
    chart: Path
    name: str = NAME
    namespace: str = NAMESPACE

    def values(self) -> dict[str, Any]:
        """What an installation with these images sets."""
        return {
            "image": {"registry": self.images.registry, "tag": self.images.tag},
            # One node: a second replica would only idle. Tests of several ask for them.
            "operator": {"replicas": 1, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
        }

    def install(self, *, chart: Path | None = None, values: Mapping[str, Any] | None = None) -> str:
        """`helm upgrade --install --wait`: what helm says."""
        given = json.dumps(merged(self.values(), dict(values or {})))
        command = ["upgrade", "--install", self.name, str(chart or self.chart), "--namespace", self.namespace]
        options = ["--create-namespace", "--wait", "--timeout", "5m", "-f", "-"]
        try:
            return self.helm(*command, *options, text=given)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def helm(self, *arguments: str, text: str | None = None) -> str:
        return run(["helm", *arguments], env=self.kube.environment, text=text, deadline_s=400).stdout

    @property
    def pods(self) -> list[Object]:
        """The operator's pods."""
        return self.kube.pods(self.namespace, f"app.kubernetes.io/instance={self.name}")

    def wait_until_ready(self) -> None:
        """At least one operator, and none that is not ready."""

        def ready() -> bool:
            pods = [pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"]]
            return bool(pods) and all(is_true(pod, "Ready") for pod in pods)

        patiently(ready, SLOW_S, lambda: f"the operator is ready\n{self.story()}")

    def log(self, lines: int = 60) -> str:
        """The last words of all operators."""
        which = ("-l", f"app.kubernetes.io/instance={self.name}", "--all-containers", "--prefix", f"--tail={lines}")
        return self.kube.kubectl("logs", "-n", self.namespace, *which, check=False)

    def story(self) -> str:
        pods = self.kube.kubectl("get", "pods,events", "-n", self.namespace, check=False)
        return f"=== operator\n{pods}\n{self.log()}"
