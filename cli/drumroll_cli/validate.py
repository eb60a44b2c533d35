"""`drumroll validate`: what an API server would say about job files, and more, without one.

Where a job's model is on this machine, the model directory and the whole data set are checked as `drumroll run` would.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_USER

if TYPE_CHECKING:
    from drumroll.api.loading import Loaded, LoadedJob
    from drumroll.api.problems import Problem


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Job files; - is standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")] = False,
    data: Annotated[bool, typer.Option(help="Also check models and data sets that are on this machine.")] = True,
) -> None:
    """Check job files and name every problem, with what to write instead.

    Files may hold several documents; objects of other kinds are skipped. Nothing is started. A job whose model
    directory is here has its model and every row of its data checked as well. Exit code 0: all jobs are valid; 2: they
    are not.

    Examples:

    `drumroll validate job.yaml`

    `helm template chart | drumroll validate -`
    """
    from drumroll.api.loading import read_jobs

    loaded = read_jobs(files)
    if data and not loaded.problems:
        loaded = replace(loaded, problems=tuple(problem for entry in loaded.jobs for problem in _file_problems(entry)))
    if as_json:
        typer.echo(json.dumps(_as_json(loaded), ensure_ascii=False, indent=1))
    else:
        _print(loaded)
    if loaded.problems:
        raise typer.Exit(EXIT_USER)


def _file_problems(entry: "LoadedJob") -> Iterator["Problem"]:
    """What is wrong with the files of a job, as far as they are on this machine."""
    spec = entry.job.spec
    source_dir = Path.cwd() if entry.file.startswith("<") else Path(entry.file).parent
    model_dir = source_dir / spec.model.path
    if not model_dir.is_dir():
        return
    from drumroll.api.problems import Problem
    from drumroll.data import check
    from drumroll.errors import UserError
    from drumroll_cli.local.preflight import require_model

    try:
        require_model(spec, model_dir)
        check(spec, model_dir=model_dir, source_dir=source_dir)
    except UserError as error:
        yield Problem(entry.file, str(error), entry.document, entry.line)


def report(loaded: "Loaded") -> None:
    """Notes, warnings and problems, on standard error."""
    for note in loaded.notes:
        typer.echo(f"{note}", err=True)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for problem in loaded.problems:
        typer.echo(f"error: {problem}", err=True)


def _print(loaded: "Loaded") -> None:
    report(loaded)
    wrong = {(problem.file, problem.document) for problem in loaded.problems}
    for entry in loaded.jobs:
        if (entry.file, entry.document) in wrong:
            continue
        typer.echo(f"{entry.file}: {entry.job.metadata.name} is valid")
    if (count := len(loaded.problems)) > 0:
        typer.echo(f"{count} problem{'s' if count > 1 else ''} found", err=True)


def _as_json(loaded: "Loaded") -> dict[str, object]:
    jobs = [{"file": entry.file, "name": entry.job.metadata.name, "line": entry.line} for entry in loaded.jobs]
    kinds = {"problems": loaded.problems, "warnings": loaded.warnings, "notes": loaded.notes}
    return {"jobs": jobs, **{kind: [asdict(item) for item in items] for kind, items in kinds.items()}}
