"""The process: its arguments and its exit codes."""

from pathlib import Path

import pytest
from drumroll_scheduler import __main__ as process
from drumroll_scheduler.opening import Accept

from drumroll.errors import EXIT_FENCED, EXIT_INTERNAL, EXIT_USER, Fenced, StoreUnavailable


def test_arguments_name_what_a_resume_may_change() -> None:
    assert process.arguments([]) == Accept()
    assert process.arguments(["--accept-data-change", "--accept-job-change"]) == Accept(data=True, job=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Fenced("incarnation 2 was replaced by 3"), EXIT_FENCED),
        (StoreUnavailable("the store does not answer"), EXIT_INTERNAL),
    ],
)
def test_errors_become_exit_codes(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(accept: Accept) -> int:
        raise error

    monkeypatch.setattr(process, "serve", fail)
    monkeypatch.setattr(process.logs, "set_up", lambda name: None)
    assert process.main([]) == code


def test_a_job_file_that_is_none_is_the_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.logs, "set_up", lambda name: None)
    monkeypatch.setenv("DRUMROLL_JOB", str(tmp_path / "job.json"))
    monkeypatch.setenv("DRUMROLL_ROLE", "scheduler")
    assert process.main([]) == EXIT_USER
