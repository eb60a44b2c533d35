"""Runs that cannot go on: one clear last word, the exit code says whose fault it is, nothing is left running."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drumroll.errors import EXIT_INTERNAL, EXIT_USER

MakeJob = Callable[..., Any]

BROKEN = '''"""Keeps its contract twice, then forgets an answer."""

calls = 0


def score(completions, **columns):
    global calls
    calls += 1
    return [1.0] * (len(completions) if calls < 3 else len(completions) - 1)
'''


def last_word(job: Any) -> str:
    """What follows `tiny failed:`, on one line."""
    return " ".join(job.output.rpartition("tiny failed:")[2].split())


def test_a_reward_function_that_breaks_its_contract_stops_the_run_r6(make_job: MakeJob) -> None:
    job = make_job()
    (job.folder / "lengths.py").write_text(BROKEN)
    assert job.start().wait() == EXIT_USER, job.story
    wanted = "reward.function lengths:score must return a list of 1 numbers, one per completion, but returned 0: []"
    assert wanted in last_word(job)
    assert "Traceback" not in job.output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_is_named_and_the_run_goes_on_once_it_is_free(make_job: MakeJob, small_disk: Path) -> None:
    job = make_job(steps=8, rollout={"engine": {"replay": {"sigma": 0.1, "stepSeconds": 0.2}}})
    job.run_dir = small_disk / "run"
    job.start()
    job.wait_for_steps(2)
    with (small_disk / "ballast").open("wb") as ballast:
        try:
            while True:
                ballast.write(bytes(1 << 16))
        except OSError:
            pass
    assert job.wait() == EXIT_INTERNAL, job.story
    assert last_word(job).startswith(f"no space is left on the disk of {job.run_dir}: free some"), job.story
    assert "Traceback" not in job.output
    (small_disk / "ballast").unlink()
    assert job.start(resume=True).wait() == 0, job.story
    assert job.steps == 8
    assert job.audit()[0] == job.replay()[0] == 0


def test_other_data_on_resume_is_refused_unless_accepted_w6(make_job: MakeJob) -> None:
    job = make_job(prompts=24, steps=8).start()
    job.wait_for_steps(3)
    job.interrupt()
    assert job.wait() == EXIT_INTERNAL
    for numbers, count in (([0, 1, 2], 3), (list(range(25)), 25), (list(reversed(range(24))), 24)):
        job.write_prompts(numbers)
        assert job.start(resume=True).wait() == EXIT_USER, job.story
        said = " ".join(job.output.split()).rpartition("drumroll: ")[2]
        assert "24 rows" in said, said
        assert f"{count} rows" in said, said
        assert said.count("digest") >= 2, said
        assert "--accept-data-change" in said
    assert job.start("--accept-data-change", resume=True).wait() == 0, job.story
    assert job.steps == 8
    assert job.audit()[0] == 0
