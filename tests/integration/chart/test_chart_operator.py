"""The operator and `helm test` as processes beside a real API server, with nothing but what the chart gives them."""

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

NAMESPACE = "drumroll-chart-operator"
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.cluster


@pytest.fixture(params=["cluster", "namespace"])
def values(request: pytest.FixtureRequest) -> Any:
    """Both modes, without what the test session has installed already."""
    base: Any = {"crds": {"enabled": False}, "rbac": {"aggregateRoles": False}}
    return {**base, "watchNamespaces": [NAMESPACE]} if request.param == "namespace" else base


def test_the_operator_works_with_the_charts_rights_settings_and_key_k8(
    chart: Any, api_server: Any, values: Any, tmp_path: Path
) -> None:
    rendered = chart.render("--namespace", NAMESPACE, values=values)
    here = [item for item in rendered.objects if item["kind"] not in ("Deployment", "Pod")]
    with _applied(api_server, here), _operator(api_server, rendered, tmp_path) as page:
        _until(lambda: page("/readyz") == "ok\n")
        # Ready comes before the Lease where nobody holds it: wait for what only the leader does.
        watching = 'drumroll_operator_api_requests_total{code="200",resource="pods",verb="watch"}'
        _until(lambda: watching in page("/metrics"))
        refused = re.findall(r'^drumroll_operator_api_requests_total\{code="403".*', page("/metrics"), re.MULTILINE)
        assert refused == []
        done = _helm_test(api_server, page.address, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        checks = ("an_rljob_is_accepted", "the_lease_is_held", "metrics_are_served")
        assert done.stdout == "".join(f"ok {check}\n" for check in checks)


def _until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.2)


@contextmanager
def _applied(server: Any, objects: list[dict[str, Any]]) -> Iterator[None]:
    """Objects of the chart in a namespace of this test's own, tests and hooks included."""
    text = yaml.safe_dump_all(objects)
    assert server.kubectl("create", "namespace", NAMESPACE).returncode == 0
    try:
        done = server.kubectl("-n", NAMESPACE, "apply", "--server-side", "-f", "-", text=text)
        assert done.returncode == 0, done.stderr
        yield
    finally:
        server.kubectl("-n", NAMESPACE, "delete", "--ignore-not-found", "--wait=false", "-f", "-", text=text)
        server.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


class _Page:
    """What the operator serves."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self.address}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
        return text


@contextmanager
def _operator(server: Any, rendered: Any, tmp_path: Path) -> Iterator[_Page]:
    """The operator's process with the chart's own command line, as its service account."""
    (tmp_path / "key").write_text("k1" * 32)
    settings = {**rendered.settings, "keyFile": str(tmp_path / "key")}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    [container] = rendered.one("Deployment", "drumroll-operator")["spec"]["template"]["spec"]["containers"]
    arguments = [argument.replace("/etc/drumroll/settings", str(tmp_path)) for argument in container["args"]]
    command = [sys.executable, *container["command"][1:], *arguments]
    command += ["--kubeconfig", str(_kubeconfig(server, "drumroll-operator", tmp_path)), "--port=0", "--host=127.0.0.1"]
    log = tmp_path / "operator.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path) as process:
        try:
            found: list[str] = []

            def listening() -> bool:
                assert process.poll() is None, log.read_text()
                found[:] = re.findall(r"on port (\d+)", log.read_text())
                return bool(found)

            _until(listening)
            yield _Page(f"http://127.0.0.1:{found[0]}")
        finally:
            process.terminate()
            assert process.wait(30) == 0, log.read_text()


def _helm_test(server: Any, address: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The program of the test pod, as its service account."""
    config = yaml.safe_load(_kubeconfig(server, "drumroll-test", tmp_path).read_text())
    [entry], [user] = config["clusters"], config["users"]
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(user["user"]["token"])
    (account / "ca.crt").write_bytes(_certificate(entry["cluster"]))
    host = urlsplit(entry["cluster"]["server"])
    variables = {
        "ACCOUNT": str(account),
        "KUBERNETES_SERVICE_HOST": str(host.hostname),
        "KUBERNETES_SERVICE_PORT": str(host.port),
        "NAMESPACE": NAMESPACE,
        "JOBS_NAMESPACE": NAMESPACE,
        "LEASE": "drumroll-operator",
        "METRICS": f"{address}/metrics",
    }
    command = [sys.executable, str(ROOT / "deploy/helm/drumroll/files/check.py")]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def _kubeconfig(server: Any, account: str, tmp_path: Path) -> Path:
    """Of a service account."""
    shown = server.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
    config = json.loads(shown.stdout)
    token = server.kubectl("-n", NAMESPACE, "create", "token", account)
    assert token.returncode == 0, token.stderr
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token.stdout.strip()}}]
    file = tmp_path / f"{account}.kubeconfig"
    file.write_text(json.dumps(config))
    return file


def _certificate(cluster: dict[str, str]) -> bytes:
    return base64.b64decode(cluster["certificate-authority-data"])
