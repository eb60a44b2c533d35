"""Bad input to `drumroll run`: one clear message, exit code 2, no process and no half-made directory."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drumroll_cli.local import command, preflight, rundir

MakeJob = Callable[..., Any]
Refused = Callable[..., str]


def here(folder: Path) -> set[str]:
    return set(os.listdir(folder)) - {"__pycache__"}


@pytest.fixture
def refused(verb: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """refused(job, *arguments): the message with which `drumroll run` refuses; nothing may be started or left."""

    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a process would have been started")

    monkeypatch.setattr(command, "_watch", never)

    def run(job: Any, *arguments: str, file: str = "job.yaml") -> str:
        monkeypatch.chdir(job.folder)
        before = here(job.folder)
        code, said = verb("run", file, *(arguments or ("--run-dir", "run")))
        assert code == 2, said
        assert here(job.folder) == before
        assert "Traceback" not in said
        return " ".join(said.split())

    return run


def test_a_missing_job_file(make_job: MakeJob, refused: Refused) -> None:
    assert "no-such.yaml" in refused(make_job(), file="no-such.yaml")


def test_an_unreadable_job_file(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    (job.folder / "job.yaml").write_bytes(b"\xff\xfe\x00kind: [")
    assert "job.yaml" in refused(job)


def test_no_job_file_at_all(verb: Callable[..., tuple[int, str]]) -> None:
    code, said = verb("run")
    assert code == 2
    assert "give a job file" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stepz": 3}, ("spec.stepz", "steps")),
        ({"algorithm": {"learningRate": -1.0}}, ("spec.algorithm.learningRate", "-1")),
        ({"steps": "many"}, ("spec.steps", "many")),
        ({"epochs": 1}, ("spec.epochs", "only one")),
        ({"targetPolicyLag": 9}, ("spec.targetPolicyLag", "maxPolicyLag")),
        ({"algorithm": {"groupSize": 1}}, ("groupSize 1", "2 or more")),
    ],
)
def test_a_field_that_cannot_be(make_job: MakeJob, refused: Refused, changes: Any, words: tuple[str, ...]) -> None:
    said = refused(make_job(**changes))
    assert all(word in said for word in words), said


def test_an_override_that_cannot_be(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    assert "write PATH=VALUE" in refused(job, "--set", "steps")
    assert "spec.rollout.replicaz" in refused(job, "--set", "rollout.replicaz=4")
    assert "has no fields of its own" in refused(job, "--set", "steps.more=1")


def test_a_model_that_is_not_there(make_job: MakeJob, refused: Refused) -> None:
    said = refused(make_job(model={"path": "no-model"}))
    assert "spec.model.path: 'no-model' is no directory" in said


def test_a_model_without_weights(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    copied = Path(shutil.copytree(job.folder / "model", job.folder / "bare"))
    (copied / "model.safetensors").unlink()
    job.spec["model"]["path"] = "bare"
    job.write_job()
    assert "safetensors" in refused(job)


def test_a_model_without_template_and_chat_prompts_t6(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    rows = [{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"} for _ in range(4)]
    (job.folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = refused(job)
    assert "no chat template" in said
    assert "model.chatTemplate" in said


def test_prompts_longer_than_allowed(make_job: MakeJob, refused: Refused) -> None:
    said = refused(make_job(data={"maxPromptTokens": 3}))
    assert "over data.maxPromptTokens: 3" in said
    assert "Set data.maxPromptTokens to 5, or data.overlongPrompts to skip" in said


def test_samples_longer_than_the_models_context(make_job: MakeJob, refused: Refused) -> None:
    said = refused(make_job(data={"maxResponseTokens": 113}))
    assert "maxPromptTokens 16 + maxResponseTokens 113 are 129 tokens, over the model's context of 128" in said


def test_a_tokenizer_that_knows_more_than_the_model(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    copied = Path(shutil.copytree(job.folder / "model", job.folder / "other"))
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"vocab_size": 10}))
    job.spec["model"]["path"] = "other"
    job.write_job()
    said = refused(job)
    assert "vocab_size" in said
    assert "10" in said


def test_data_that_is_not_there(make_job: MakeJob, refused: Refused) -> None:
    assert "no-data.jsonl" in refused(make_job(data={"train": {"path": "no-data.jsonl"}}))


def test_a_reward_module_that_does_not_import(make_job: MakeJob, refused: Refused) -> None:
    job = make_job(reward={"function": "broken:score"})
    (job.folder / "broken.py").write_text("import no_such_module\n")
    said = refused(job)
    assert "broken:score" in said
    assert "no_such_module" in said


def test_a_reward_function_that_is_not_there(make_job: MakeJob, refused: Refused) -> None:
    assert "lengths:points" in refused(make_job(reward={"function": "lengths:points"}))


def test_a_port_in_use(make_job: MakeJob, refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = refused(make_job(), "--run-dir", "run", "--port", port)
    assert f"--port {port} cannot be used" in said


def test_not_enough_memory(make_job: MakeJob, refused: Refused) -> None:
    said = refused(make_job(rollout={"engine": {"type": "vllm", "kvCacheMemory": "9Ti"}}))
    assert "not enough memory: the job needs about 92" in said
    assert "Lower spec.rollout.replicas or spec.rollout.engine.kvCacheMemory" in said


def test_not_enough_disk(make_job: MakeJob, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 1000)
    said = refused(make_job())
    assert "not enough disk" in said
    assert "0.0 GiB free" in said


def test_gpus_that_are_not_there(make_job: MakeJob, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumroll_cli.local.gpus.find", lambda: ["0"])
    said = refused(make_job(trainer={"resources": {"limits": {"nvidia.com/gpu": 4}}}))
    assert "asks for 4 GPUs" in said


def test_a_run_directory_that_holds_something(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    (job.folder / "full").mkdir()
    (job.folder / "full" / "thesis.txt").write_text("years of work")
    assert "full is not empty" in refused(job, "--run-dir", "full")
    assert (job.folder / "full" / "thesis.txt").read_text() == "years of work"
    assert not (job.folder / "full" / ".lock").exists()
    (job.folder / "full" / "job.json").write_text("{}")
    assert "full holds a run already: go on with it by --resume full" in refused(job, "--run-dir", "full")
    assert "cannot be used as a run directory" in refused(job, "--run-dir", "train.jsonl")


def test_two_runs_on_one_directory(make_job: MakeJob, refused: Refused) -> None:
    job = make_job()
    lock = rundir.hold(job.folder / "held")
    try:
        assert "another `drumroll run` uses held" in refused(job, "--run-dir", "held")
    finally:
        os.close(lock)


def test_parents_made_for_a_refused_run_are_removed_and_others_stay(make_job: MakeJob, refused: Refused) -> None:
    job = make_job(model={"path": "no-model"})
    refused(job, "--run-dir", "a/b/c")
    (job.folder / "there").mkdir()
    refused(job, "--run-dir", "there")
    assert (job.folder / "there").is_dir()


def test_resuming_what_is_no_run(make_job: MakeJob, verb: Callable[..., tuple[int, str]]) -> None:
    job = make_job()
    code, said = verb("run", "--resume", str(job.folder))
    assert code == 2
    assert "is not a run directory: it has no job.json" in said
    code, said = verb("run", "job.yaml", "--resume", str(job.folder))
    assert code == 2
    assert "--resume takes no job file" in said


def test_a_literal_secret_runs_with_a_warning_and_is_in_no_job_json_s6(
    make_job: MakeJob, verb: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(env=[{"name": "TRACKER_API_KEY", "value": "sentinel-0123456789"}], model={"path": "no-model"})
    monkeypatch.chdir(job.folder)
    code, said = verb("run", "job.yaml")
    assert code == 2
    assert "warning: " in said
    assert "spec.env[0].value: TRACKER_API_KEY looks like a secret" in said
    assert "sentinel" not in said
