"""`drumroll plan`: what the planner would decide for a pass of a job, why, and what it expects."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import UserError

if TYPE_CHECKING:
    from drumroll_planner.asp import AspPlan

_PICTURES = (".svg", ".png", ".pdf")


def plan(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Job file; a plan file to show; with --diff, two plan files.")
    ],
    job: Annotated[str | None, typer.Option("--job", help="Name of the job, where the file holds several.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also show what the decision rests on.")] = False,
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="PATH", help="Earlier answers: a run directory, or CSV or JSONL of lengths."),
    ] = None,
    costs: Annotated[
        str | None, typer.Option("--costs", metavar="FILE", help="Costs of `drumroll profile`, or a preset's name.")
    ] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", min=1, help="Default: the job's.")] = None,
    prompts: Annotated[
        int | None, typer.Option("--prompts", min=1, help="So many prompts, instead of reading the data set.")
    ] = None,
    epoch: Annotated[int, typer.Option("--pass", min=0, help="Which pass to plan, from 0.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the plan here (.plan), or a picture of it (.svg, .png).")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Say how two plan files differ.")] = False,
) -> None:
    """Plan a pass, print what was decided and what is expected, and draw it. Nothing is started.

    Without --history nothing is known of lengths, and the plan is a seeded shuffle. The scheduler makes the same plans
    while a job runs; they lie in the job's folder under plans/.

    Examples:

    `drumroll plan job.yaml --history runs/first-light --explain`

    `drumroll plan --diff runs/a/volume/.../plans/plan-1.plan plan-2.plan`
    """
    if diff:
        _diff(files)
        return
    if len(files) != 1:
        raise UserError(f"{len(files)} files: give one job file or plan file, or --diff with two plan files")
    if files[0].endswith(".plan"):
        made = _read(files[0])
    else:
        from drumroll_cli.planning.inputs import Wanted, make

        made = make(files[0], Wanted(job, history, costs, replicas, prompts, epoch))
    _print(made, explain=explain)
    if out is not None:
        _write(made, out)


def _read(name: str) -> "AspPlan":
    from drumroll_planner.asp import planfile

    try:
        return planfile.read(Path(name))
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from error


def _diff(files: list[str]) -> None:
    from drumroll_planner.asp.telling import difference

    if len(files) != 2:
        raise UserError(f"--diff compares two plan files; {len(files)} are given")
    for line in difference(_read(files[0]), _read(files[1])).lines:
        typer.echo(line)


def _print(made: "AspPlan", *, explain: bool) -> None:
    from drumroll_planner.asp import telling

    parts = [telling.summary(made), telling.sketch(made.explanation)]
    if explain:
        parts += [telling.candidates(made.explanation), telling.explained(made)]
    typer.echo("\n\n".join("\n".join(part) for part in parts if part))


def _write(made: "AspPlan", out: Path) -> None:
    from drumroll_planner.asp import planfile

    try:
        if out.suffix in _PICTURES:
            from drumroll_cli.planning.picture import draw

            draw(made.explanation, out)
        else:
            out = planfile.write(made, out)
    except OSError as error:
        raise UserError(f"--out: {out} cannot be written: {error.strerror}") from error
    typer.echo(f"\nwritten: {out}")
