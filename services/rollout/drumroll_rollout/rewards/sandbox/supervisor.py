"""Watches over one program of a sandbox: limits, counts, ends. Run by its path, by an interpreter without packages.

It imports the standard library and its neighbour alone, so that it starts in a few hundredths of a second. What it
found goes as JSON to the file descriptor that it was given; the program does not inherit that one.
"""

import ctypes
import importlib.util
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.005
_NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000
"""User, process, network and IPC namespaces of the program's own."""


def _neighbour(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


processes = _neighbour("processes")


def main() -> None:
    """argv[1] is the JSON that `run_python` makes."""
    config = json.loads(sys.argv[1])
    report_fd = int(config["report_fd"])
    os.set_inheritable(report_fd, False)
    processes.become_subreaper()
    parent = os.getppid()
    isolated = config["isolate"] and ctypes.CDLL(None).unshare(_NAMESPACES) == 0
    program = os.fork()
    if program == 0:
        _become_program(config)
    reason, status = _watch(program, config, parent)
    processes.kill_descendants(os.getpid())
    if status is None:
        status = _reap(program)
    report = {"reason": reason, "exit_code": os.waitstatus_to_exitcode(status), "isolated": isolated}
    os.write(report_fd, json.dumps(report).encode())


def _become_program(config: dict[str, Any]) -> None:
    os.setsid()
    for limit, value in (
        (resource.RLIMIT_DATA, config["memory_bytes"]),
        (resource.RLIMIT_FSIZE, config["max_file_bytes"]),
        (resource.RLIMIT_CPU, int(config["timeout_s"]) + 2),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        resource.setrlimit(limit, (value, value))
    os.execv(sys.executable, [sys.executable, "-I", config["program"]])


def _watch(program: int, config: dict[str, Any], parent: int) -> tuple[str | None, int | None]:
    """(why the program has to end or None, its wait status if it has ended by itself)."""
    deadline = time.monotonic() + config["timeout_s"]
    while True:
        ended, status = os.waitpid(program, os.WNOHANG)
        if ended:
            return None, status
        alive = processes.descendants(os.getpid())
        if len(alive) > config["max_processes"]:
            return "processes", None
        if processes.resident_bytes(alive) > config["memory_bytes"]:
            return "memory", None
        if time.monotonic() >= deadline:
            return "timeout", None
        if os.getppid() != parent:
            return "abandoned", None
        time.sleep(_POLL_S)


def _reap(program: int) -> int:
    """The status of the program, which is dead, among those of its orphans."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == program:
            return status


if __name__ == "__main__":
    main()
