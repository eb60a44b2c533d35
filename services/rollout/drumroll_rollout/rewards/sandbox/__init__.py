"""For rewards that run code a model wrote: `run_python` runs it apart and always comes back in time.

    from drumroll_rollout.rewards.sandbox import run_python

    def score(completions, tests, **columns):
        return [float(run_python(code + test, timeout_s=5).ok) for code, test in zip(completions, tests)]

The program gets an empty folder, no input, no variables of ours, limits on time, memory, files, processes and output;
everything that it started ends with it. Where the kernel lets its user make namespaces it also has no network and
reaches no process but its own (`isolated` says so). It is no wall against an attacker: the program runs under the
same user and can read what that user can read.
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from drumroll_rollout.rewards.sandbox.processes import kill_marked, kill_tree

_SLACK_S = 5.0
_PATH = "/usr/local/bin:/usr/bin:/bin"

Reason = Literal["timeout", "memory", "processes", "abandoned", "supervisor"]


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a program ended."""

    exit_code: int
    """As subprocess has it: negative is a signal."""
    stdout: str
    stderr: str
    reason: Reason | None
    """Why it was ended; None: it ended by itself. `supervisor`: its watcher was lost, which only hostile code does."""
    truncated: bool
    """It wrote more than was kept."""
    isolated: bool
    """It had process and network namespaces of its own."""

    @property
    def ok(self) -> bool:
        """It ended by itself with exit code 0."""
        return self.reason is None and self.exit_code == 0


def run_python(
    code: str,
    *,
    timeout_s: float,
    memory_bytes: int = 512 * 1024 * 1024,
    max_processes: int = 16,
    max_output_bytes: int = 64 * 1024,
    max_file_bytes: int = 16 * 1024 * 1024,
    isolate: bool = True,
) -> SandboxResult:
    """Run a Python program to its end, or to `timeout_s`. Blocks; may be called from several threads.

    `isolate`: in namespaces of its own where the kernel allows it.
    """
    with tempfile.TemporaryDirectory(prefix="drumroll-sandbox-", ignore_cleanup_errors=True) as folder:
        program = Path(folder) / "program.py"
        program.write_text(code, encoding="utf-8", errors="replace")
        config = {
            "program": str(program),
            "timeout_s": timeout_s,
            "memory_bytes": memory_bytes,
            "max_processes": max_processes,
            "max_file_bytes": max_file_bytes,
            "isolate": isolate,
        }
        return _supervise(config, folder, timeout_s=timeout_s, max_output_bytes=max_output_bytes)


def _supervise(config: dict[str, Any], folder: str, *, timeout_s: float, max_output_bytes: int) -> SandboxResult:
    report_in, report_out = os.pipe()
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(__file__).with_name("supervisor.py")),
                json.dumps(config | {"report_fd": report_out}),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": _PATH, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            pass_fds=(report_out,),
            start_new_session=True,
            bufsize=0,
        )
    except BaseException:
        os.close(report_in)
        raise
    finally:
        os.close(report_out)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        fds = {process.stdout.fileno(): max_output_bytes, process.stderr.fileno(): max_output_bytes, report_in: 1 << 16}
        data, truncated = _collect(fds, report_in, deadline=time.monotonic() + timeout_s + _SLACK_S)
        out, err = data[process.stdout.fileno()], data[process.stderr.fileno()]
        if not data[report_in]:
            kill_marked(folder.encode())
        return _result(data[report_in], out, err, truncated)
    finally:
        kill_tree(process.pid)
        process.wait()
        process.stdout.close()
        process.stderr.close()
        os.close(report_in)


def _collect(limits: dict[int, int], report: int, *, deadline: float) -> tuple[dict[int, bytes], bool]:
    """Read pipes to their ends, keeping at most so many bytes of each; (what was kept, whether something was not).

    A `report` pipe that ends without a word ends all: its writer was killed.
    """
    kept = {fd: bytearray() for fd in limits}
    truncated = False
    with selectors.DefaultSelector() as selector:
        for fd in limits:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fd)
                    if key.fd == report and not kept[report]:
                        return {fd: bytes(value) for fd, value in kept.items()}, truncated
                room = limits[key.fd] - len(kept[key.fd])
                truncated = truncated or len(part) > room
                kept[key.fd] += part[:room]
    return {fd: bytes(value) for fd, value in kept.items()}, truncated


def _result(report: bytes, out: bytes, err: bytes, truncated: bool) -> SandboxResult:
    found: dict[str, Any] = (
        json.loads(report) if report else {"exit_code": -9, "reason": "supervisor", "isolated": False}
    )
    return SandboxResult(
        exit_code=found["exit_code"],
        stdout=out.decode("utf-8", errors="replace"),
        stderr=err.decode("utf-8", errors="replace"),
        reason=found["reason"],
        truncated=truncated,
        isolated=found["isolated"],
    )
