"""The single-node cluster that the tools in the folder of DRUMROLL_CLUSTER bring up; it belongs to the tests alone.

Everything in it ends with `down`. Only one exists at a time: its state folder and addresses are the tools' defaults.
"""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from kit.packages import PACKAGES, bind_packages, unbind_packages
from kit.shell import run

from drumroll.testing import eventually_sync

STATE = Path("/tmp/drumroll-e2e")
"""What the test processes of a run share."""
_AUDIT_POLICY = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts"], namespaces: [], verbs: []}
- {level: None}
"""


@dataclass(frozen=True)
class Node:
    """The cluster and the handles that its tools give: the node's namespaces, its runtime, its logs."""

    tools: Path
    state: Path
    binaries: Path
    environment: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, tools: Path) -> "Node":
        """The cluster of a folder of tools, as yet down."""
        run([tools / "ensure.sh"], deadline_s=3000)
        shown = run(["bash", "-c", '. "$0/lib.sh"; echo "$BIN"; echo "$RUN"', tools]).stdout.split()
        binaries, state = Path(shown[0]), Path(shown[1])
        environment = os.environ | {
            "ADDONS": "coredns",
            "HOST_MOUNTS": str(PACKAGES),
            "APISERVER_FLAGS": f"--audit-policy-file={state}/audit-policy.yaml --audit-log-path={state}/log/audit.log",
            "KUBECONFIG": f"{state}/admin.kubeconfig",
            "KUBECACHEDIR": f"{state}/kube-cache",
            "PATH": f"{binaries}:{os.environ['PATH']}",
        }
        return cls(tools, state, binaries, environment)

    @property
    def is_up(self) -> bool:
        try:
            pid = int((self.state / "init.pid").read_text())
            os.kill(pid, 0)
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return False
        return True

    def up(self) -> None:
        bind_packages()
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "log").mkdir(exist_ok=True)
        (self.state / "audit-policy.yaml").write_text(_AUDIT_POLICY)
        run([self.tools / "up.sh"], env=self.environment, deadline_s=300)

    def down(self) -> None:
        """End everything in the cluster and what it was shown."""
        run([self.tools / "down.sh"], env=self.environment, check=False)
        unbind_packages()

    def runtime(self, *arguments: str, deadline_s: float = 120.0) -> str:
        """containerd's client, in the namespace of the pods' containers."""
        command = ["ctr", "-a", f"{self.state}/containerd.sock", "-n", "k8s.io", *arguments]
        return run([*self.inside, *command], env=self.environment, deadline_s=deadline_s).stdout

    @property
    def inside(self) -> list[str]:
        """The beginning of a command that runs in the node's namespaces."""
        pid = (self.state / "init.pid").read_text().strip()
        return ["nsenter", "-t", pid, "-m", "-p", "-n", "-u", "-i"]

    def kill_container(self, container_id: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to a container's first process, from outside: the kernel hides it from those within."""
        self.runtime("task", "kill", "-s", str(int(number)), container_id.removeprefix("containerd://"))

    def load_images(self, archive: Path) -> None:
        self.runtime("images", "import", str(archive), deadline_s=300)

    def images(self) -> set[str]:
        """Names of the images that are there."""
        return set(self.runtime("images", "ls", "-q").split())

    @property
    def audit_log(self) -> Path:
        """One JSON object a line: what service accounts asked the API server for."""
        return self.state / "log" / "audit.log"

    def restart_api_server(self) -> None:
        """Kill it, and start it again with the same arguments."""
        pid = self._pid_of("kube-apiserver")
        command = [part for part in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") if part]
        os.kill(pid, signal.SIGKILL)
        eventually_sync(lambda: not Path(f"/proc/{pid}").exists(), 30.0, "the API server has ended")
        # Nobody waits for it: it ends with the node.
        start = ["bash", "-c", '"$@" >>"$0" 2>&1 </dev/null &', self.state / "log" / "kube-apiserver-again.log"]
        run([*start, *self.inside, "setsid", *command], env=self.environment)

    def _pid_of(self, name: str) -> int:
        """The pid, on this machine, of one of the node's own processes."""
        namespace = os.readlink(f"/proc/{(self.state / 'init.pid').read_text().strip()}/ns/pid")
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                inside = os.readlink(folder / "ns/pid") == namespace
            except OSError:
                continue
            if inside and Path(command[0].decode()).name == name:
                return int(folder.name)
        raise AssertionError(f"no {name} runs in the cluster")
