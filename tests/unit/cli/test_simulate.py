"""`drumroll simulate` and `drumroll profile`: what they print, write and refuse."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from drumroll_cli import main as cli
from drumroll_cli.simulating.fleets import drawn_lengths, parse_sizes
from drumroll_cli.simulating.profiling import parse_counts
from drumroll_planner.costs import CostModel
from typer.testing import CliRunner, Result

from drumroll.errors import UserError

JOB = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  model: {path: models/tiny}
  data: {train: {path: data/train.jsonl}, maxPromptTokens: 64, maxResponseTokens: 200}
  reward: {type: math}
  algorithm: {promptsPerStep: 4, groupSize: 2}
  steps: 6
  rollout: {replicas: 2, maxConcurrentSamples: 4%s}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "80"}, catch_exceptions=True)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB % "")
    return path


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a tokenizer of one token per character."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("model")
    words = {word: number for number, word in enumerate(["<eos>", *map(chr, range(32, 127))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(directory)
    (directory / "config.json").write_text('{"model_type": "llama", "eos_token_id": 0, "vocab_size": 96}')
    return directory


def simulate(job_file: Path, *arguments: str) -> Result:
    picture = str(job_file.parent / "out.svg")
    return run("simulate", str(job_file), "--prompts", "30", "--out", picture, *arguments)


def test_the_report_fits_eighty_columns_and_answers_both_questions(job_file: Path) -> None:
    result = simulate(job_file, "--replicas", "1..8")
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines() if "out.svg" not in line) <= 80
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [row[0] for row in rows if len(row) == 10] == ["1", "2", "4", "8"]
    text = " ".join(result.stdout.split())
    assert "8 more GPUs (2 to 10 replicas):" in text
    assert "plateau" in text
    assert (job_file.parent / "out.svg").read_text().startswith("<?xml")


def test_one_fleet_is_reported_without_a_curve(job_file: Path) -> None:
    result = simulate(job_file)
    assert result.exit_code == 0, result.output
    assert "name several numbers of replicas" in " ".join(result.stdout.split())


def test_programs_get_json_with_the_bounds_beside_the_times(job_file: Path) -> None:
    result = simulate(job_file, "--json", "--replicas", "1,4")
    rows = json.loads(result.stdout)
    assert [row["replicas"] for row in rows] == [1, 4]
    for row in rows:
        largest = max(row[f"{name}BoundSeconds"] for name in ("generation", "trainer", "longest"))
        assert row["makespanSeconds"] >= largest
    assert not (job_file.parent / "out.svg").exists()


def test_costs_and_lengths_come_from_files(job_file: Path) -> None:
    costs, lengths = job_file.parent / "costs.json", job_file.parent / "lengths.csv"
    costs.write_text(CostModel(name="mine", step_s=0.5).to_json())
    lengths.write_text("row,tokens\n" + "".join(f"{row},{100}\n" for row in range(30)))
    result = simulate(job_file, "--costs", str(costs), "--lengths", str(lengths))
    assert "100 tokens on average" in " ".join(result.stdout.split())
    assert "Costs: mine." in " ".join(result.stdout.split())


def test_a_job_of_the_replay_engine_brings_its_costs_and_lengths(job_file: Path) -> None:
    job_file.write_text(JOB % ", engine: {type: replay, replay: {medianTokens: 7, sigma: 0}}")
    text = " ".join(simulate(job_file, "--planner", "fifo", "--kv-tokens", "400").stdout.split())
    assert "7 tokens on average, 7 at most" in text
    assert "Costs: replay engine (the job file)." in text


def test_the_planner_that_is_simulated_is_the_schedulers_own(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((JOB % "").replace("200}", "4096}").replace("steps: 6", "steps: 32\n  maxPolicyLag: 1"))
    generator = np.random.default_rng(0)
    means = generator.normal(5.5, 1.0, 128)
    lines = [f"{row},{int(np.exp(mean + generator.normal(0, 0.1)))}" for row, mean in enumerate(means) for _ in "12"]
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("\n".join(["row,tokens", *lines]))
    known = ("simulate", str(job), "--prompts", "128", "--lengths", str(lengths), "--out", str(tmp_path / "out.svg"))
    text = " ".join(run(*known).stdout.split())
    assert "Order: a seeded shuffle; nothing is known" in text
    planned = run(*known, "--history", str(lengths))
    assert planned.exit_code == 0, planned.output
    assert "Order: cycles of" in planned.stdout
    assert "threshold of 8%" in " ".join(planned.stdout.split())
    seconds = [
        json.loads(run(*known, "--json", *more).stdout)[0]["stepSeconds"] for more in ((), ("--history", str(lengths)))
    ]
    assert seconds[1] < seconds[0]


def test_many_samples_are_simulated_in_the_fast_mode(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumroll_cli.simulate._FAST_SAMPLES", 10)
    assert "Mode: fast." in " ".join(simulate(job_file).stdout.split())


def test_the_data_set_gives_the_prompts(tmp_path: Path, tiny_tokenizer: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"prompt": f"{number} + 1 =", "answer": str(number + 1)}) for number in range(12)]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(rows))
    job = tmp_path / "job.yaml"
    job.write_text((JOB % "").replace("models/tiny", str(tiny_tokenizer)))
    result = run("simulate", str(job), "--out", str(tmp_path / "out.png"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "many"], "names no numbers"),
        (["--replicas", "8..2"], "names no numbers"),
        (["--replicas", "0"], "names no numbers"),
        (["--costs", "nowhere.json"], "no file that can be read"),
        (["--lengths", "nowhere.csv"], "cannot read"),
        (["--planner", "magic"], "magic"),
    ],
)
def test_mistakes_are_named(arguments: Sequence[str], message: str, job_file: Path) -> None:
    result = simulate(job_file, *arguments)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_sizes_are_read_in_all_three_forms() -> None:
    assert parse_sizes("4") == [4]
    assert parse_sizes("8,1,8") == [1, 8]
    assert parse_sizes("3..20") == [3, 4, 8, 16, 20]


def test_drawn_lengths_have_a_long_tail_and_a_limit() -> None:
    lengths = drawn_lengths(2000, 4, limit=4096, seed=0)
    np.testing.assert_array_equal(lengths, drawn_lengths(2000, 4, limit=4096, seed=0))
    assert lengths.max() == 4096
    longest = np.sort(lengths.ravel())[-800:].sum()
    assert 0.25 < longest / lengths.sum() < 0.5
    assert np.corrcoef(np.log(lengths[:, 0]), np.log(lengths[:, 1]))[0, 1] > 0.7


def test_a_profile_of_the_replay_engine_finds_its_steps(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 64}')
    out = tmp_path / "costs.json"
    result = run(
        *("profile", str(tmp_path), "--engine", "replay", "--out", str(out), "--repeats", "1", "--threads", "1"),
        *("--batches", "1,2,4", "--contexts", "4", "--prefills", "4,8", "--tokens", "12"),
    )
    assert result.exit_code == 0, result.output
    model = CostModel.from_json(out.read_text())
    # The engine's own figures: 20 ms a step and 0.5 ms a further sequence; a busy machine is only slower.
    assert 0.015 < model.decode(1, 10) < 0.2
    assert model.publish_pause_s >= 0.05
    assert {fit for fit, _ in model.errors} == {"decode", "prefill"}
    assert "decode: median error" in result.stdout
    assert out.with_suffix(".svg").exists()


def test_a_profile_says_what_it_cannot_do(tmp_path: Path) -> None:
    assert "vllm or replay" in str(run("profile", str(tmp_path), "--engine", "magic").exception)
    with pytest.raises(UserError, match="--batches: '1,x'"):
        parse_counts("--batches", "1,x")
