"""The command line's registry, and the verbs that need no run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from drumroll_cli import main as cli
from drumroll_trainer.learner.tiny_model import make_tiny_model
from typer.testing import CliRunner

from drumroll.errors import JobError, JobFailed

JOB = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: small}
spec:
  model: {path: models/tiny}
  data: {train: {path: data/train.jsonl}}
  reward: {type: math}
"""


def run(*arguments: str, text: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(arguments), input=text)
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_verb() -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(f" {name} " in out for name in cli.VERBS)


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_every_help_has_an_example(verb: str) -> None:
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert f"drumroll {verb}" in out


def test_the_version_is_told() -> None:
    assert run("--version")[1].startswith("drumroll 0.")


def test_an_unknown_verb_is_the_users_mistake() -> None:
    code, _, err = run("valid")
    assert code == 2
    assert "valid" in err


def test_help_imports_no_verb() -> None:
    script = (
        "import sys; from drumroll_cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not [m for m in sys.modules if m.startswith(('drumroll_cli.validate', 'pydantic', 'yaml', 'torch'))]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_completion_knows_verbs_and_their_options() -> None:
    def complete(words: str, position: int) -> list[str]:
        environment = {"_DRUMROLL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        result = CliRunner().invoke(cli.app, [], env=environment, prog_name="drumroll")
        return result.stdout.split()

    assert "validate" in complete("drumroll va", 1)
    assert "--json" in complete("drumroll validate --", 2)


def test_valid_jobs_end_with_0(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    assert run("validate", str(path)) == (0, f"{path}: small is valid\n", "")


def test_problems_end_with_2_and_go_to_standard_error() -> None:
    code, out, err = run("validate", "-", text=JOB + "  steps: 0\n  seed: -1\n")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: <stdin>:8: spec.steps is 0: too small: write 1 or more",
        "error: <stdin>:9: spec.seed is -1: too small: write 0 or more",
        "2 problems found",
    ]


def test_notes_and_warnings_do_not_change_the_end() -> None:
    text = "kind: Secret\napiVersion: v1\n---\n" + JOB + "  env: [{name: HF_TOKEN, value: sentinel}]\n"
    code, out, err = run("validate", "-", text=text)
    assert code == 0
    assert "small is valid" in out
    assert "skipped Secret" in err
    assert "warning: <stdin>:11: spec.env[0].value: HF_TOKEN looks like a secret" in err
    assert "sentinel" not in out + err


def test_programs_get_one_json_object() -> None:
    code, out, _ = run("validate", "--json", "-", text=JOB + "  steps: 0\n")
    answer = json.loads(out)
    assert code == 2
    assert answer["jobs"] == []
    assert answer["problems"][0]["field"] == "spec.steps"
    assert answer["problems"][0]["line"] == 8


def test_crd_prints_what_a_cluster_takes() -> None:
    code, out, _ = run("crd")
    assert code == 0
    assert yaml.safe_load(out)["kind"] == "CustomResourceDefinition"


@pytest.mark.parametrize(("error", "code"), [(JobError("no such field"), 2), (JobFailed("store lost"), 1)])
def test_errors_on_purpose_end_in_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == f"drumroll: {error}\n"


def test_files_that_are_here_are_checked_too_t6(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "base", seed=0, hidden=32, layers=1, heads=1)
    (tmp_path / "chat.jsonl").write_text('{"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"}\n')
    job = tmp_path / "job.yaml"
    job.write_text(
        "apiVersion: drumroll.dev/v1alpha1\nkind: RLJob\nmetadata: {name: base}\nspec:\n"
        "  model: {path: base}\n  data: {train: {path: chat.jsonl}, maxPromptTokens: 64, maxResponseTokens: 64}\n"
        "  reward: {type: math}\n"
    )
    code, out, err = run("validate", str(job))
    assert (code, out) == (2, "")
    assert "chat template" in err
    assert str(tmp_path / "base") in err
    assert run("validate", "--no-data", str(job)) == (0, f"{job}: base is valid\n", "")
