"""One cluster for all tests of a run: brought up by whichever test process needs it first, ended by the run's own.

DRUMROLL_E2E_KEEP=1 leaves it up for the next run, which then starts in seconds; `down.sh` of the tools ends it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from kit.images import PREFIX, Images, provide
from kit.jobs import prepare
from kit.kube import Kube, Object
from kit.node import STATE, Node
from kit.place import USER, Place, Workbench, make_place, restricted_pod
from kit.release import Release

from drumroll.testing import eventually_sync

ROOT = Path(__file__).parents[3]
OTHER_RUN_S = 3600.0
OWNER = "DRUMROLL_E2E_OWNER"
"""Pid of the test run that a cluster belongs to."""
_SESSION = STATE / "session.json"
_VOLUME = Path("/var/tmp/drumroll-e2e-volume")
"""On the node: the files of all tests' volumes."""


@dataclass
class Cluster:
    """A cluster with the operator in it."""

    kube: Kube
    node: Node | None
    """None: somebody's own cluster, by KUBECONFIG."""
    images: Images
    release: Release
    bench: Workbench

    def place(self, namespace: str) -> Place:
        return make_place(self.kube, namespace, host_path=str(_VOLUME))

    def require_node(self) -> Node:
        """For tests that reach into the node itself."""
        if self.node is None:
            pytest.skip("needs the node itself: unset KUBECONFIG and name the tools by DRUMROLL_CLUSTER")
        return self.node

    def kill_container(self, name: str, pod: Object) -> None:
        """End a container's first process at once; elsewhere the nearest thing is the pod's end without grace."""
        if self.node is None:
            self.kube.delete(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{name}", grace_s=0)
        else:
            self.node.kill_container(pod["status"]["containerStatuses"][0]["containerID"])


def take_ownership() -> None:
    """In the run's first process: workers inherit the variable."""
    os.environ.setdefault(OWNER, str(os.getpid()))


@contextlib.contextmanager
def open_cluster() -> Iterator[Cluster]:
    """The run's cluster; brought up if need be."""
    tools = os.environ.get("DRUMROLL_CLUSTER")
    if "KUBECONFIG" not in os.environ and tools is None:
        pytest.skip("set KUBECONFIG, or DRUMROLL_CLUSTER to the folder of a cluster's up.sh")
    STATE.mkdir(parents=True, exist_ok=True)
    with _lock():
        node = None if "KUBECONFIG" in os.environ else _bring_up(Path(str(tools)))
        environment = node.environment if node else dict(os.environ)
        kubectl = str(node.binaries / "kubectl") if node else shutil.which("kubectl")
        assert kubectl, "KUBECONFIG is set, but there is no kubectl on PATH"
        kube = Kube(kubectl, environment).open()
        try:
            cluster = _furnish(kube, node)
        except BaseException:
            kube.close()
            raise
    try:
        yield cluster
    finally:
        kube.close()


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """For this process alone, once no other run has the cluster: there is one at a time."""

    def mine() -> IO[str] | None:
        lock = (STATE / "up.lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        owner = _read().get("owner")
        if owner == os.environ[OWNER] or not _runs(owner):
            return lock
        lock.close()
        return None

    held = eventually_sync(mine, OTHER_RUN_S, "the other run's end", pause_s=1.0)
    assert held is not None
    with held:
        yield


def close_run() -> None:
    """At the end of the run, in its first process: end the cluster, if this run brought it up."""
    found = _read()
    shutil.rmtree(STATE / f"finished-{os.environ.get(OWNER)}", ignore_errors=True)
    if found.get("owner") != os.environ.get(OWNER):
        return
    tools = os.environ.get("DRUMROLL_CLUSTER")
    if found.get("node"):
        if os.environ.get("DRUMROLL_E2E_KEEP"):
            _write({**found, "owner": "kept"})
            sys.stderr.write("\nthe cluster stays up; its down.sh ends it\n")
            return
        Node.of(Path(str(tools))).down()
        shutil.rmtree(_VOLUME, ignore_errors=True)
    else:
        kube = Kube(str(shutil.which("kubectl")), dict(os.environ))
        kube.kubectl("delete", "namespace,persistentvolume", "-l", "drumroll.dev/e2e=true", "--wait=false", check=False)
    _SESSION.unlink(missing_ok=True)


def _bring_up(tools: Path) -> Node:
    """The node, up: this run's, or one that was kept, or a new one."""
    node = Node.of(tools)
    owner = _read().get("owner")
    if node.is_up and owner in ("kept", os.environ[OWNER]):
        return node
    if node.is_up:
        node.down()  # Left by a run that was killed.
        node = Node.of(tools)
    _SESSION.unlink(missing_ok=True)
    shutil.rmtree(_VOLUME, ignore_errors=True)
    _write({"owner": os.environ[OWNER], "node": True})
    node.up()
    return node


def _runs(owner: str | None) -> bool:
    """Whether that test run goes on."""
    return owner is not None and Path(f"/proc/{owner}").exists()


def _furnish(kube: Kube, node: Node | None) -> Cluster:
    """Images, the operator, a workbench, and the files that jobs start from."""
    found = _read()
    if node:
        # A run stays with the code that it began with.
        going_on = found.get("tag") and found["owner"] == os.environ[OWNER]
        images = Images(PREFIX, found["tag"]) if going_on else provide(node, ROOT)
    else:
        prefix = os.environ.get("DRUMROLL_E2E_IMAGE_PREFIX", PREFIX)
        images = Images(prefix, os.environ.get("DRUMROLL_E2E_IMAGE_TAG", "dev"))
    release = Release(kube, images, ROOT / "deploy/helm/drumroll")
    place = Place(kube, "drumroll-e2e")
    if found.get("tag") != images.tag:
        _make_volume(kube, node, images)
        release.install()
        place = make_place(kube, place.namespace, host_path=str(_VOLUME))
        kube.delete(f"{place.path}/pods/workbench", grace_s=0)
        bench = Workbench.open(place, images.of("trainer"))
        prepare(bench)
        _write({"owner": os.environ[OWNER], "node": node is not None, "tag": images.tag})
    elif found["owner"] != os.environ[OWNER]:
        _write({**found, "owner": os.environ[OWNER]})
    return Cluster(kube, node, images, release, Workbench(place))


def _make_volume(kube: Kube, node: Node | None, images: Images) -> None:
    """The folder on the node, open to the pods' group."""
    if node:
        _VOLUME.mkdir(parents=True, exist_ok=True)
        os.chown(_VOLUME, USER, USER)
        _VOLUME.chmod(0o2770)
        return
    # kubelet gives no group to a hostPath volume, so somebody has to.
    pod = restricted_pod("make-volume", images.of("trainer"), ["sh", "-c", f"chown {USER}:{USER} /v && chmod 2770 /v"])
    spec = pod["spec"] | {"securityContext": {"runAsUser": 0}}
    spec["volumes"] = [{"name": "v", "hostPath": {"path": str(_VOLUME), "type": "DirectoryOrCreate"}}]
    main = {key: spec["containers"][0][key] for key in ("name", "image", "command")}
    spec["containers"] = [{**main, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
    kube.apply({**pod, "metadata": {**pod["metadata"], "namespace": "kube-system"}, "spec": spec})
    kube.kubectl("wait", "-n", "kube-system", "--for=jsonpath={.status.phase}=Succeeded", "pod/make-volume")
    kube.kubectl("delete", "-n", "kube-system", "pod/make-volume")


def _read() -> dict[str, Any]:
    try:
        return dict(json.loads(_SESSION.read_text()))
    except FileNotFoundError:
        return {}


def _write(values: dict[str, Any]) -> None:
    _SESSION.write_text(json.dumps(values))
