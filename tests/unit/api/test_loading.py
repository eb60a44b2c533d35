"""Job files: what can be read, what is refused, and how that is said."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drumroll.api.loading import load_jobs, parse_jobs, read_jobs
from drumroll.api.problems import InvalidJobs, Problem, shown
from drumroll.api.reference import EXAMPLE
from drumroll.errors import JobError

HERE = Path(__file__).parent
EXAMPLES = sorted(path for path in (HERE.parents[2] / "examples").rglob("*.y*ml") if "kind: RLJob" in path.read_text())
POOLS: dict[str, list[Any]] = yaml.safe_load((HERE / "pools.yaml").read_text())


def messages(text: str) -> list[str]:
    return [str(problem).removeprefix("job.yaml:") for problem in parse_jobs(text, "job.yaml").problems]


def test_the_documented_example_is_valid() -> None:
    (job,) = load_jobs(EXAMPLE)
    assert job.spec.algorithm.learning_rate == 1e-6
    assert job.spec.rollout.resources.gpus == 1
    assert job.spec.stream.embedded.max_bytes == "8Gi"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid_without_a_warning(path: Path) -> None:
    loaded = read_jobs([str(path)])
    assert not loaded.problems
    assert not loaded.warnings


def test_all_mistakes_of_all_documents_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE / "cases")
    told = "\n".join(str(problem) for problem in read_jobs(["mistakes.yaml"]).problems)
    assert told + "\n" == (HERE / "cases" / "mistakes.txt").read_text()


def test_no_message_shows_what_may_be_a_secret() -> None:
    told = "\n".join(str(problem) for problem in read_jobs([str(HERE / "cases" / "mistakes.yaml")]).problems)
    assert "sentinel" not in told


def test_case_s6_a_literal_secret_is_warned_about_without_its_value() -> None:
    loaded = read_jobs([str(HERE / "cases" / "S6_env.yaml")])
    assert not loaded.problems
    (warning,) = loaded.warnings
    assert warning.field == "spec.env[1].value"
    assert warning.line == 10
    assert "TRACKER_API_KEY" in warning.message
    assert "valueFrom" in warning.message
    assert "sentinel" not in str(warning)


def test_case_s6_a_reference_stays_a_reference() -> None:
    (job,) = load_jobs(HERE / "cases" / "S6_env.yaml")
    wire = job.to_wire()["spec"]["env"]
    assert wire[0] == {"name": "HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}


def test_case_k6_quantities_in_other_forms_are_valid() -> None:
    (job,) = load_jobs(HERE / "cases" / "K6_quantities.yaml")
    assert job.spec.trainer.resources.requests == {"cpu": "1", "memory": "1.5Gi"}


def test_objects_of_other_kinds_are_skipped_with_a_note() -> None:
    loaded = read_jobs([str(HERE / "cases" / "K2_quota.yaml")])
    assert [entry.job.metadata.name for entry in loaded.jobs] == ["quota"]
    assert [note.message for note in loaded.notes] == ["skipped ResourceQuota: only RLJobs are checked here"]


def test_many_documents_and_lists_are_read_in_order(job_text: Callable[..., str]) -> None:
    names = [{"metadata.name": name} for name in ("first", "second", "third")]
    items = [yaml.safe_load(job_text(name)) for name in names[1:]]
    text = "---\n" + job_text(names[0]) + "---\n" + yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    assert [job.metadata.name for job in load_jobs(text)] == ["first", "second", "third"]


def test_mistakes_inside_a_list_have_their_own_lines(job_text: Callable[..., str]) -> None:
    item = yaml.safe_load(job_text({"spec.steps": 0}))
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [item]}, sort_keys=False)
    line = text.splitlines().index("    steps: 0") + 1
    assert messages(text) == [f"{line}: spec.steps is 0: too small: write 1 or more"]


def test_the_status_of_an_exported_job_is_left_aside(job_text: Callable[..., str]) -> None:
    assert len(load_jobs(job_text({"status": {"phase": "Running"}, "metadata.resourceVersion": "7"}))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job.yaml: is empty: write an RLJob, such as the ones under examples/"),
        ("---\n# nothing\n---\n", "job.yaml: is empty: write an RLJob, such as the ones under examples/"),
        ("a: [1", "job.yaml:1: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a:\n\t- b", "job.yaml:2: not YAML: found character '\\t' that cannot start any token: indent with spaces"),
        ("a: \0", "job.yaml: not YAML: unacceptable character #x0000"),
        ("a: &a [*a]", "job.yaml: nested too deeply"),
        ("a: !!int b", "job.yaml:1: not YAML: 'b' is not of type int"),
        ("a: {<<: 5}", "job.yaml:1: not YAML: << expects mappings"),
        ("? [a]\n: b", "job.yaml:1: not YAML: a key must be plain text"),
        ("a: !!python/name:os.system x", "job.yaml:1: not YAML: could not determine a constructor"),
        ("just text", 'job.yaml:1: expects an object with apiVersion, kind, metadata and spec, but found "just text"'),
        ("image: x", "job.yaml:1: not a Kubernetes object: a job begins with apiVersion"),
        ("kind: ConfigMap\napiVersion: v1", "job.yaml: holds no RLJob: write kind: RLJob"),
        ("a: &a [" + "1," * 999 + "]\nb: &b [" + "*a," * 999 + "]", "job.yaml: not YAML: more than 200000 values"),
    ],
)
def test_what_is_no_job_file_is_one_clear_problem(text: str, message: str) -> None:
    (problem,) = parse_jobs(text, "job.yaml").problems
    assert str(problem).startswith(message)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"kind: \xe9")
    (tmp_path / "large.yaml").write_bytes(b" " * (3 << 20) + b"x")
    files = [str(tmp_path / name) for name in ("absent.yaml", "latin.yaml", "large.yaml", ".")]
    told = [str(problem) for problem in read_jobs(files).problems]
    assert told == [
        f"{files[0]}: cannot be read: No such file or directory",
        f"{files[1]}: is not UTF-8 text (byte 6): save it as UTF-8",
        f"{files[2]}: is larger than 3 MiB: too large for a job file",
        f"{files[3]}: cannot be read: Is a directory",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: RLJob")
    path.chmod(0)
    assert "Permission denied" in str(read_jobs([str(path)]).problems[0])


def test_a_byte_order_mark_and_crlf_do_not_matter(tmp_path: Path, job_text: Callable[..., str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + job_text().replace("\n", "\r\n").encode())
    assert load_jobs(path)[0].metadata.name == "small"


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, job_text: Callable[..., str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(job_text({"spec.steps": 0}).encode())))
    assert str(read_jobs(["-"]).problems[0]).startswith("<stdin>:")


def test_two_jobs_of_one_name_are_refused(tmp_path: Path, job_text: Callable[..., str]) -> None:
    assert messages(job_text() + "---\n" + job_text()) == [
        '17: metadata.name is "small": another job has this name, at job.yaml:4: write another name'
    ]
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(job_text())
    (problem,) = read_jobs([str(file) for file in files]).problems
    assert problem.file == str(files[1])
    assert f"{files[0]}:4" in problem.message


def test_one_name_in_two_namespaces_is_two_jobs(job_text: Callable[..., str]) -> None:
    assert len(load_jobs(job_text() + "---\n" + job_text({"metadata.namespace": "team"}))) == 2


def test_load_jobs_raises_every_problem(job_text: Callable[..., str]) -> None:
    with pytest.raises(InvalidJobs) as raised:
        load_jobs(job_text({"spec.steps": 0, "spec.seed": -1}))
    assert isinstance(raised.value, JobError)
    assert len(raised.value.problems) == len(str(raised.value).splitlines()) == 2


def test_numbers_and_texts_are_read_as_kubectl_reads_them(job_text: Callable[..., str]) -> None:
    text = job_text({"spec.data.train": {"tasks": [{"name": "x", "config": {"C": 0}}]}, "spec.reward.type": "tasks"})
    scalars = (
        "a: 1e-6\n          b: 1:30\n          c: 2024-01-01\n          d: 0x10\n          e: .5\n          f: on\n"
    )
    (job,) = load_jobs(text.replace("C: 0\n", scalars))
    expected = {"a": 1e-6, "b": "1:30", "c": "2024-01-01", "d": 16, "e": 0.5, "f": True}
    assert job.spec.data.train.tasks[0].config == expected


def test_a_field_with_nothing_after_it_keeps_its_default(job_text: Callable[..., str]) -> None:
    assert load_jobs(job_text() + "  rollout:\n  seed:\n")[0].spec.rollout.replicas == 1


def test_merged_mappings_may_be_overridden(job_text: Callable[..., str]) -> None:
    shared = "  env: [{name: A, value: x, <<: &a {value: y}}, {name: B, <<: [*a, {value: z}]}]\n"
    assert [variable.value for variable in load_jobs(job_text() + shared)[0].spec.env] == ["x", "y"]


def test_a_null_takes_out_what_was_merged(job_text: Callable[..., str]) -> None:
    text = job_text() + "  trainer: {<<: {replicas: 3, threads: 2}, replicas: 4, threads: null}\n"
    (job,) = load_jobs(text)
    assert (job.spec.trainer.replicas, job.spec.trainer.threads) == (4, None)


def test_values_in_messages_are_short() -> None:
    assert shown("spec.steps", "x" * 100) == '"' + "x" * 58 + "…"
    assert shown("spec.steps", None) is None
    assert shown("spec.env[0].value", "secret") is None
    assert str(Problem("f", "m", suggestion="s")) == "f: m: s"


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(st.lists(st.sampled_from(sorted(POOLS)), max_size=6, unique=True))
    return {field: draw(st.sampled_from(POOLS[field])) for field in fields}


@given(changes())
@settings(max_examples=60, deadline=None)
def test_a_job_that_is_written_out_reads_back_the_same(job_text: Callable[..., str], change: dict[str, Any]) -> None:
    loaded = parse_jobs(job_text(change), "job.yaml")
    assume(not loaded.problems)
    job = loaded.jobs[0].job
    (again,) = parse_jobs(json.dumps(job.to_wire()), "job.json").jobs
    assert again.job == job


@given(changes())
@settings(max_examples=60, deadline=None)
def test_every_problem_names_field_line_and_remedy(job_text: Callable[..., str], change: dict[str, Any]) -> None:
    for problem in parse_jobs(job_text(change), "job.yaml").problems:
        assert problem.field.startswith("spec.")
        assert problem.line is not None
        assert any(word in problem.message for word in ("write", "leave", "put"))


@given(st.text(max_size=200) | st.from_regex(r"([a-z]+: |- |\n|  |\{|\[|&a |\*a |<<: |!!int |\|\n){1,30}"))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    loaded = parse_jobs(text, "job.yaml")
    assert loaded.problems or loaded.jobs or loaded.notes
