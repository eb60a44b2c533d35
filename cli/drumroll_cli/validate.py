"""`drumroll validate`: what an API server would say about job files, and more, without one."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_USER

if TYPE_CHECKING:
    from drumroll.api.loading import Loaded


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Job files; - is standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")] = False,
) -> None:
    """Check job files and name every problem, with what to write instead.

    Files may hold several documents; objects of other kinds are skipped. Nothing is started, and neither models nor
    data sets are opened. Exit code 0: all jobs are valid; 2: they are not.

    Examples:

    `drumroll validate job.yaml`

    `helm template chart | drumroll validate -`
    """
    from drumroll.api.loading import read_jobs

    loaded = read_jobs(files)
    if as_json:
        typer.echo(json.dumps(_as_json(loaded), ensure_ascii=False, indent=1))
    else:
        _print(loaded)
    if loaded.problems:
        raise typer.Exit(EXIT_USER)


def _print(loaded: "Loaded") -> None:
    for note in loaded.notes:
        typer.echo(f"{note}", err=True)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for problem in loaded.problems:
        typer.echo(f"error: {problem}", err=True)
    for entry in loaded.jobs:
        typer.echo(f"{entry.file}: {entry.job.metadata.name} is valid")
    if (count := len(loaded.problems)) > 0:
        typer.echo(f"{count} problem{'s' if count > 1 else ''} found", err=True)


def _as_json(loaded: "Loaded") -> dict[str, object]:
    jobs = [{"file": entry.file, "name": entry.job.metadata.name, "line": entry.line} for entry in loaded.jobs]
    kinds = {"problems": loaded.problems, "warnings": loaded.warnings, "notes": loaded.notes}
    return {"jobs": jobs, **{kind: [asdict(item) for item in items] for kind, items in kinds.items()}}
