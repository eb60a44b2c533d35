"""R8: model-written code runs apart and ends with everything it started."""

import os
import threading
import time
from pathlib import Path

import pytest
from drumroll_rollout.rewards.sandbox import run_python
from drumroll_rollout.rewards.sandbox.processes import descendants

FORKS = """
import os, time
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""

both = pytest.mark.parametrize("isolate", [True, False])


@both
def test_r8_an_endless_loop_ends_at_its_time(isolate: bool) -> None:
    started = time.monotonic()
    result = run_python("while True: pass", timeout_s=0.5, isolate=isolate)
    assert result.reason == "timeout"
    assert not result.ok
    assert time.monotonic() - started < 30


@both
def test_r8_a_fork_loop_is_capped_and_leaves_nothing(isolate: bool) -> None:
    before = set(descendants(os.getpid()))
    result = run_python(FORKS, timeout_s=20, max_processes=8, isolate=isolate)
    assert result.reason == "processes"
    assert set(descendants(os.getpid())) <= before
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"drumroll-sandbox-" in _bytes(path)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@both
def test_r8_the_environment_and_the_working_folder_are_not_ours(monkeypatch: pytest.MonkeyPatch, isolate: bool) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "sentinel-9f3c")
    result = run_python("import os; print(dict(os.environ), os.listdir('.'))", timeout_s=30, isolate=isolate)
    assert result.ok
    assert "sentinel-9f3c" not in result.stdout
    assert "['program.py']" in result.stdout
    assert run_python("print(open('..').read())", timeout_s=30, isolate=isolate).exit_code == 1


@both
def test_r8_children_end_with_their_program(isolate: bool) -> None:
    before = set(descendants(os.getpid()))
    code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    started = time.monotonic()
    assert run_python(code, timeout_s=60, isolate=isolate).ok
    assert time.monotonic() - started < 50
    assert set(descendants(os.getpid())) <= before


def test_memory_is_limited_for_one_process_and_for_all_together() -> None:
    one = run_python("x = bytearray(1 << 30)", timeout_s=30, memory_bytes=128 << 20)
    assert "MemoryError" in one.stderr
    several = "import os, time\nfor _ in range(4):\n  if os.fork() == 0: break\nx = b'x' * (60 << 20)\ntime.sleep(30)\n"
    assert run_python(several, timeout_s=20, memory_bytes=128 << 20).reason == "memory"


def test_output_and_files_are_bounded() -> None:
    result = run_python("print('x' * 100_000)", timeout_s=30, max_output_bytes=1000)
    assert result.ok
    assert result.truncated
    assert len(result.stdout) == 1000
    assert not run_python("open('f', 'wb').write(bytes(1 << 20))", timeout_s=30, max_file_bytes=1000).ok


def test_a_program_that_kills_its_watcher_is_told_and_still_comes_back() -> None:
    code = "import os, time; os.kill(os.getppid(), 9); time.sleep(60)"
    result = run_python(code, timeout_s=0.5, isolate=False)
    assert result.reason == "supervisor"
    assert not result.ok


def test_several_run_at_a_time() -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(run_python(f"print({n})", timeout_s=20).stdout == f"{n}\n"))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 4
