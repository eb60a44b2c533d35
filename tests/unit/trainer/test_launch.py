"""Several ranks end as one trainer whose exit code says why."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drumroll_trainer.learner.launch import exit_code_of

from drumroll.errors import EXIT_FENCED, EXIT_USER


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([2, -signal.SIGTERM], EXIT_USER),
        ([1, 2], EXIT_USER),
        ([-signal.SIGTERM, 75], EXIT_FENCED),
        ([-signal.SIGKILL, 1], 137),
        ([-signal.SIGTERM, 1], 1),
        ([-signal.SIGTERM], 143),
        ([], 1),
    ],
)
def test_the_rank_that_says_what_is_wrong_counts(codes: list[int], code: int) -> None:
    assert exit_code_of(codes) == code


def test_a_users_mistake_in_one_rank_is_told_through_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "ranks_end.py").write_text(
        "import os, sys, time\nsys.exit(2) if os.environ['RANK'] == '1' else time.sleep(120)\n"
    )
    arguments = ["--standalone", "--nproc-per-node=2", "-m", "ranks_end"]
    command = [sys.executable, "-m", "drumroll_trainer.learner.launch", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == EXIT_USER, done.stderr
