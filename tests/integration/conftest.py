"""A real API server: the one of KUBECONFIG, or one started by the tools in the folder that DRUMROLL_CLUSTER names."""

import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from drumroll.api.crd import crd_yaml

# Addresses, names and state of its own: another cluster may run beside it.
_OWN_NETWORK = {
    "NODE_IP": "198.19.0.1",
    "HOST_IP": "198.19.0.2",
    "POD_CIDR": "198.19.64.0/18",
    "SVC_CIDR": "198.19.128.0/17",
    "API_SVC_IP": "198.19.128.1",
    "DNS_IP": "198.19.128.10",
    "VETH": "rlj0",
    "CGROUP": "rlj-api-tests",
    "CONTROL_PLANE_ONLY": "1",
}
NAMESPACE = "drumroll-api-tests"


@dataclass(frozen=True)
class ApiServer:
    """What the tests need of an API server."""

    kubectl_path: str
    environment: dict[str, str] = field(repr=False)
    url: str
    """Of a local proxy that needs no credentials."""

    def kubectl(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [self.kubectl_path, "-n", NAMESPACE, *arguments]
        return subprocess.run(command, env=self.environment, input=text, capture_output=True, text=True, check=False)

    def request(self, method: str, path: str, body: Any, content_type: str = "application/json") -> Any:
        """The answer, be it good or an error status."""
        jobs = f"/apis/drumroll.dev/v1alpha1/namespaces/{NAMESPACE}/rljobs"
        request = urllib.request.Request(
            f"{self.url}{jobs}{path}", json.dumps(body).encode(), {"Content-Type": content_type}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)

    def create(self, job: Any, *, dry_run: bool = True) -> Any:
        """The job with its defaults, or the error."""
        return self.request("POST", f"?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", job)


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    with _cluster() as (kubectl, environment), _proxy(kubectl, environment) as url:
        server = ApiServer(kubectl, environment, url)
        assert server.kubectl("create", "namespace", NAMESPACE).returncode == 0
        try:
            applied = server.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", text=crd_yaml())
            assert applied.returncode == 0, applied.stderr
            server.kubectl("wait", "--for=condition=Established", "crd/rljobs.drumroll.dev", "--timeout=60s")
            yield server
        finally:
            server.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
            server.kubectl("delete", "crd", "rljobs.drumroll.dev", "--wait=false")


@contextmanager
def _cluster() -> Iterator[tuple[str, dict[str, str]]]:
    environment = dict(os.environ)
    if "KUBECONFIG" in environment:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            pytest.skip("KUBECONFIG is set, but there is no kubectl on PATH")
        yield kubectl, environment
        return
    if "DRUMROLL_CLUSTER" not in environment:
        pytest.skip("set KUBECONFIG, or DRUMROLL_CLUSTER to the folder of a cluster's up.sh")
    tools = Path(environment["DRUMROLL_CLUSTER"])
    state = tempfile.mkdtemp(prefix="rlj")  # Short: it holds sockets.
    environment |= {**_OWN_NETWORK, "RUN": f"{state}/run"}

    def tool(name: str) -> None:
        done = subprocess.run([tools / name], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"

    tool("ensure.sh")
    shown = subprocess.run(
        ["bash", "-c", '. "$0/lib.sh"; echo "$BIN"', tools], env=environment, capture_output=True, text=True, check=True
    )
    try:
        tool("up.sh")
        yield (
            f"{shown.stdout.strip()}/kubectl",
            environment | {"KUBECONFIG": f"{state}/run/admin.kubeconfig", "KUBECACHEDIR": f"{state}/cache"},
        )
    finally:
        tool("down.sh")
        shutil.rmtree(state, ignore_errors=True)


@contextmanager
def _proxy(kubectl: str, environment: dict[str, str]) -> Iterator[str]:
    command = [kubectl, "proxy", "--port=0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://{process.stdout.readline().split()[-1]}"
        finally:
            process.terminate()
