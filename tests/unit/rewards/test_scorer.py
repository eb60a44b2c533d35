"""Scoring by real reward processes."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drumroll_rollout.rewards import RewardCrash, Scorer, build_scorer, check_reward

from drumroll.api.spec import RLJobSpec
from drumroll.errors import RewardError
from drumroll.job import Endpoints, Layout, ResolvedJob

Make = Callable[..., Scorer]
WriteModule = Callable[[str], str]

EIGHT = (
    ["q"] * 8,
    [f"#### {number}" for number in range(8)],
    [[number] for number in range(8)],
    [{"answer": str(number)} for number in range(8)],
    [True] * 8,
)


def _score(scorer: Scorer, *completions: str, **columns: Any) -> list[float]:
    count = len(completions)
    inputs = [{"answer": None, **columns} for _ in completions]
    results = scorer.score_blocking(["q"] * count, completions, [[1]] * count, inputs, [True] * count)
    return [result.reward for result in results]


def test_r4_right_answers_count_from_the_main_thread_and_from_another(make_scorer: Make) -> None:
    scorer = make_scorer("math")
    assert [result.reward for result in scorer.score_blocking(*EIGHT)] == [1.0] * 8
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.extend(result.reward for result in scorer.score_blocking(*EIGHT)))
    thread.start()
    thread.join(60)
    assert found == [1.0] * 8


async def test_r4_right_answers_count_from_an_asyncio_task(make_scorer: Make) -> None:
    scorer = make_scorer("math", workers=2)
    both = await asyncio.gather(*(asyncio.create_task(scorer.score(*EIGHT)) for _ in range(2)))
    assert [[result.reward for result in results] for results in both] == [[1.0] * 8] * 2


async def test_r4_right_answers_count_as_shipped(spec: Callable[..., RLJobSpec], tmp_path: Path) -> None:
    layout = Layout(job_dir="j", data_dir="d", model_dir="m", source_dir=str(tmp_path))
    job = ResolvedJob(
        uid="u",
        name="n",
        namespace="d",
        spec=spec({"type": "math"}),
        layout=layout,
        endpoints=Endpoints(scheduler="localhost:1", store="redis://localhost:2"),
    )
    scorer = build_scorer(job)
    scorer.start()
    try:
        assert [result.reward for result in await scorer.score(*EIGHT)] == [1.0] * 8
    finally:
        scorer.close()


def test_r4_an_error_inside_the_reward_is_a_crash_and_no_number(make_scorer: Make, write_module: WriteModule) -> None:
    scorer = make_scorer("function", function=write_module("def score(completions, **_):\n    return [1 / 0]\n"))
    with pytest.raises(RewardCrash, match="mine:score raised ZeroDivisionError: division by zero"):
        _score(scorer, "a")


@pytest.mark.parametrize("value", ["[1.0]", "[1.0] * 5", "numpy.ones((4, 1))"])
def test_r6_a_wrong_number_of_rewards_is_refused(make_scorer: Make, write_module: WriteModule, value: str) -> None:
    scorer = make_scorer(
        "function", function=write_module(f"import numpy\ndef score(completions, **_):\n    return {value}\n")
    )
    with pytest.raises(RewardError, match="mine:score must return a list of 4 numbers"):
        _score(scorer, "a", "b", "c", "d")


def test_r6_booleans_and_numpy_scalars_reach_the_replica(make_scorer: Make, write_module: WriteModule) -> None:
    source = "import numpy\ndef score(completions, **_):\n    return [True, numpy.float32(0.5), numpy.int8(2), False]\n"
    assert _score(make_scorer("function", function=write_module(source)), "a", "b", "c", "d") == [1.0, 0.5, 2.0, 0.0]


HANGS = """
import os, subprocess, time
def score(completions, pids, **_):
    if completions[0] == "hang":
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open(pids[0], "w").write(f"{os.getpid()} {child.pid}")
        time.sleep(1000)
    if completions[0] == "exit":
        os._exit(3)
    if completions[0] == "memory":
        blocks = [b"x" * 2**20 for _ in range(4096)]
    return [1.0]
"""


def test_a_reward_that_hangs_is_ended_with_its_children_and_the_next_is_not_delayed(
    make_scorer: Make, write_module: WriteModule, tmp_path: Path
) -> None:
    """R8"""
    scorer = make_scorer("function", function=write_module(HANGS), timeout_s=1.0)
    pids = str(tmp_path / "pids")
    assert _score(scorer, "ok", pids=pids) == [1.0]
    with pytest.raises(RewardCrash, match="was ended after 1 s of scoring"):
        _score(scorer, "hang", pids=pids)
    started = time.monotonic()
    assert _score(scorer, "ok", pids=pids) == [1.0]
    assert time.monotonic() - started < 60
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_reward_process_that_ends_or_grows_is_replaced(
    make_scorer: Make, write_module: WriteModule, tmp_path: Path
) -> None:
    scorer = make_scorer("function", function=write_module(HANGS), memory_bytes=256 << 20)
    with pytest.raises(RewardCrash, match=r"ended by itself while scoring \(exit code 3\)"):
        _score(scorer, "exit", pids="")
    with pytest.raises(RewardCrash, match=r"MemoryError|over reward\.memory of 256 MiB"):
        _score(scorer, "memory", pids="")
    assert _score(scorer, "ok", pids="") == [1.0]


CHILDREN = """
import subprocess, sys
def score(completions, **_):
    program = "x = bytearray(100 << 20); import time; time.sleep(60)"
    for child in [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]:
        child.wait()
    return [1.0]
"""


def test_memory_of_a_rewards_children_counts(make_scorer: Make, write_module: WriteModule) -> None:
    scorer = make_scorer("function", function=write_module(CHILDREN), memory_bytes=256 << 20)
    with pytest.raises(RewardCrash, match=r"over reward\.memory of 256 MiB"):
        _score(scorer, "a")


ASYNC = """
import asyncio
lock = None
async def score(completions, **_):
    global lock
    lock = lock or asyncio.Lock()
    async with lock:
        await asyncio.sleep(0)
    return [1.0] * len(completions)
"""


def test_async_functions_keep_their_event_loop_between_calls(make_scorer: Make, write_module: WriteModule) -> None:
    scorer = make_scorer("function", function=write_module(ASYNC))
    assert _score(scorer, "a", "b") == [1.0, 1.0]
    assert _score(scorer, "a") == [1.0]


def test_a_reward_process_has_no_credentials_and_begins_beside_the_job(
    make_scorer: Make, write_module: WriteModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DRUMROLL_JOB", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "sentinel")
    monkeypatch.setenv("JUDGE_KEY", "known")
    source = (
        "import os\ndef score(completions, folder, **_):\n    print('a line of output does no harm')\n"
        "    hidden = not {'DRUMROLL_JOB', 'AWS_SECRET_ACCESS_KEY'} & set(os.environ)\n"
        "    return [hidden and os.environ['JUDGE_KEY'] == 'known' and os.getcwd() == folder[0]]\n"
    )
    scorer = make_scorer("function", function=write_module(source), env_names=("JUDGE_KEY",))
    assert _score(scorer, "a", folder=str(tmp_path.resolve())) == [1.0]


def test_a_file_named_like_a_library_beside_the_job_does_no_harm(
    make_scorer: Make, write_module: WriteModule, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError")
    (tmp_path / "drumroll.py").write_text("raise RuntimeError")
    assert _score(make_scorer("exact"), "a", answer="a") == [1.0]


def test_a_closed_scorer_crashes_and_ends_what_is_under_way(
    make_scorer: Make, write_module: WriteModule, tmp_path: Path
) -> None:
    scorer = make_scorer("function", function=write_module(HANGS))
    failures: list[BaseException] = []

    def call() -> None:
        try:
            _score(scorer, "hang", pids=str(tmp_path / "pids"))
        except RewardCrash as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists() and time.monotonic() < deadline:
        thread.join(0.01)
    scorer.close()
    thread.join(30)
    assert len(failures) == 1
    with pytest.raises(RewardCrash, match="closed"):
        _score(scorer, "ok", pids="")


def test_nothing_to_score_is_no_call(make_scorer: Make) -> None:
    assert make_scorer("exact").score_blocking([], [], [], [], []) == []


def test_a_replica_that_was_killed_leaves_no_reward_process(tmp_path: Path) -> None:
    source = (
        "import sys, time\nfrom drumroll_rollout.rewards.setup import WorkerSetup\n"
        "from drumroll_rollout.rewards.worker import RewardWorker\n"
        "worker = RewardWorker(WorkerSetup('exact', '.', 2**31))\nworker.load()\n"
        "print(worker.pid, flush=True)\ntime.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        pid = int(replica.stdout.readline())
        replica.kill()
    deadline = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_reward_is_checked_before_a_run(spec: Callable[..., RLJobSpec], tmp_path: Path) -> None:
    function = {"type": "function", "function": "mine:score"}
    with pytest.raises(RewardError, match=r"there is no module 'mine' in .* put mine\.py beside the job file"):
        check_reward(spec(function), tmp_path)
    (tmp_path / "mine.py").write_text("import os; os._exit(4)")
    with pytest.raises(RewardError, match=r"reward\.function: .*ended by itself while loading"):
        check_reward(spec(function), tmp_path)
    (tmp_path / "mine.py").write_text("def score(completions, **_): return [0.0] * len(completions)")
    check_reward(spec(function), tmp_path)
    check_reward(spec({"type": "math"}), tmp_path)
    assert os.path.exists(tmp_path)


def test_a_fault_at_loading_is_told_at_every_call(make_scorer: Make, write_module: WriteModule) -> None:
    scorer = make_scorer("function", function=write_module("import absent_library"))
    for _ in range(2):
        with pytest.raises(RewardError, match="it needs 'absent_library'"):
            _score(scorer, "a")
