"""`drumroll plan`: from a job and earlier answers to words, files and pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from drumroll_cli.main import app
from drumroll_planner.asp import planfile
from drumroll_planner.lengths import log
from typer.testing import CliRunner

from drumroll.errors import UserError

JOB = """
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: planned}
spec:
  model: {path: model}
  data: {train: {path: data.jsonl}, maxPromptTokens: 64, maxResponseTokens: 4096}
  reward: {type: math}
  algorithm: {groupSize: 4, promptsPerStep: 8}
  maxPolicyLag: 1
  epochs: 3
  rollout: {replicas: 2}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    means = generator.normal(5.5, 1.0, 256)
    rows = [(row, int(np.exp(mean + generator.normal(0, 0.2)))) for row, mean in enumerate(means) for _ in range(4)]
    path = tmp_path / "lengths.csv"
    path.write_text("row,tokens\n" + "".join(f"{row},{tokens}\n" for row, tokens in rows))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_plan_is_printed_explained_written_and_shown_again(job_file: Path, lengths: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.plan"
    text = run(job_file, "--prompts", 256, "--history", lengths, "--explain", "--out", out)
    for words in ("Pass 1: 256 prompts in 32 steps of 8", "Why:", "theta", "answered before", f"written: {out}"):
        assert words in text
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80
    assert sorted(planfile.read(out).rows) == list(range(256))
    assert run(out).splitlines()[0] == text.splitlines()[0]
    picture = tmp_path / "plan.svg"
    run(out, "--out", picture)
    assert "<svg" in picture.read_text()


def test_two_plans_are_compared(job_file: Path, lengths: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.plan", tmp_path / "b.plan"
    run(job_file, "--prompts", 256, "--history", lengths, "--out", first)
    run(job_file, "--prompts", 256, "--out", second)
    text = run("--diff", first, second)
    assert "order: cycles of" in text
    assert "-> first come" in text
    assert run("--diff", first, first) == "the order is the same\n"


def test_answers_of_a_run_are_its_log(job_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "volume" / "default" / "planned-1"
    (folder / "journal").mkdir(parents=True)
    (folder / "plans").mkdir()
    lines = [
        log.encode(row, row // 8, reward=1.0, answers=[(20 * (row + 1), False)] * 4, group_size=4) for row in range(64)
    ]
    (folder / "plans" / "answers.log").write_bytes(log.head(4) + b"".join(lines))
    text = run(job_file, "--prompts", 64, "--history", tmp_path / "run", "--explain")
    assert "256 answers seen" in " ".join(text.split())


def test_lengths_come_as_json_lines_too(job_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text("".join(json.dumps({"row": row, "tokens": 10 + row}) + "\n" for row in range(32)))
    text = run(job_file, "--prompts", 32, "--history", path, "--explain")
    assert "32 answers seen" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diff", "one.plan"], "compares two plan files"),
        (["a.yaml", "b.yaml"], "give one job file"),
        (["missing.plan"], "cannot be read"),
        (["JOB", "--prompts", "8", "--history", "BAD"], "write columns row and tokens"),
        (["JOB", "--prompts", "8", "--out", "/no/such/folder/x.plan"], "cannot be written"),
    ],
)
def test_mistakes_are_named(job_file: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n")
    given = [{"JOB": str(job_file), "BAD": str(bad)}.get(argument, argument) for argument in arguments]
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(app, ["plan", *given], catch_exceptions=False)
