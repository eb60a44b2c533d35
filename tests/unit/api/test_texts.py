"""Texts of job files that are unusual, and yet read as one would expect, or refused where they have no one meaning."""

import json
from collections.abc import Callable

import pytest
import yaml

from drumroll.api.loading import Loaded, parse_jobs

JobText = Callable[..., str]


def loaded(text: str) -> Loaded:
    return parse_jobs(text, "job")


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_of_any_indentation_is_a_job(job_text: JobText, indent: int | str | None) -> None:
    text = json.dumps(yaml.safe_load(job_text({"spec.steps": 3})), indent=indent)
    (entry,) = loaded(text).jobs
    assert entry.job.spec.steps == 3


def test_yaml_with_tabs_is_still_refused(job_text: JobText) -> None:
    (problem,) = loaded(job_text().replace("  ", "\t")).problems
    assert problem.suggestion == "indent with spaces, not with tabs"


def test_a_job_with_a_repeated_key_is_not_called_valid(job_text: JobText) -> None:
    found = loaded(job_text({"spec.steps": 3}) + "  steps: 4\n---\n" + job_text({"metadata.name": "other"}))
    assert [entry.job.metadata.name for entry in found.jobs] == ["other"]
    assert [problem.field for problem in found.problems] == ["spec.steps"]


@pytest.mark.parametrize("escape", ["\\0", "\\ud800", "\\udfff"])
@pytest.mark.parametrize("field", ["spec.model.path", "spec.data.train.path", "spec.resumeFrom"])
def test_text_that_no_file_system_takes_is_refused(job_text: JobText, field: str, escape: str) -> None:
    found = loaded(job_text({field: "QQ"}).replace("QQ", f'"a{escape}b"'))
    assert not found.jobs
    (problem,) = found.problems
    assert problem.field == field
    assert problem.message.startswith("holds ")
    assert str(problem).encode()


@pytest.mark.parametrize("broken", ["a: [1", "a: {b: 1", "a: b: c", "  x\n y: [", "a: 'open", "\tx: 1", "? [a]: b"])
def test_documents_behind_one_that_is_no_yaml_are_judged_too(job_text: JobText, broken: str) -> None:
    wrong = job_text({"metadata.name": "wrong", "spec.stepz": 4})
    lines = [job_text(), broken + "\n", wrong, job_text({"metadata.name": "last"})]
    found = loaded("---\n".join(lines))
    assert [entry.job.metadata.name for entry in found.jobs] == ["small", "last"]
    assert [problem.message.startswith("not YAML") for problem in found.problems] == [True, False]
    line = found.problems[1].line
    assert line is not None
    assert "stepz" in "---\n".join(lines).splitlines()[line - 1]


def test_a_value_where_a_mapping_belongs_is_put_into_the_mapping(job_text: JobText) -> None:
    (problem,) = loaded(job_text({"spec.weights.volume.persistentVolumeClaim": "shared"})).problems
    assert problem.message.endswith("write persistentVolumeClaim: {claimName: shared}")


@pytest.mark.parametrize("value", [".inf", ".nan", "1e999"])
@pytest.mark.parametrize("field", ["spec.stream.embedded.maxBytes", "spec.reward.memory", "spec.algorithm.klCoef"])
def test_what_is_not_finite_is_refused_everywhere(job_text: JobText, field: str, value: str) -> None:
    (problem,) = loaded(job_text({field: "QQ"}).replace("QQ", value)).problems
    assert problem.message == "write a finite number"
