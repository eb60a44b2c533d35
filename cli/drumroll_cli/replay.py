"""`drumroll replay`: the run's training once more, from its journal and its archived samples."""

from pathlib import Path
from typing import Annotated

import typer

from drumroll.errors import EXIT_INTERNAL


def replay(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run directory, or a job's folder on its volume.")
    ],
) -> None:
    """Train a new model on the run's own decisions and samples, without interruption, and compare.

    Compared are the published weights that are still there and the newest checkpoint. On a CPU, with one trainer
    process, they must be equal bit for bit, whatever was killed during the run. Exit code 0: equal; 1: not.

    Examples:

    `drumroll replay runs/first-light`
    """
    from drumroll_trainer.replay import replay as replay_job
    from rich.progress import Progress

    from drumroll_cli.story import read_story

    story = read_story(run_dir)
    decisions = story.decisions()
    with Progress(transient=True) as progress:
        task = progress.add_task("replaying", total=len(decisions))
        report = replay_job(story.job, decisions, on_step=lambda done: progress.update(task, completed=done))
    for comparison in report.comparisons:
        typer.echo(f"{comparison.what}: {'equal' if comparison.equal else 'DIFFERENT'}")
    typer.echo(f"{report.num_steps} steps replayed: {'all equal' if report.equal else 'not equal'}")
    if report.world_size not in (None, 1) and not report.equal:
        typer.echo(f"the run had {report.world_size} trainer processes: only runs with one are equal bit for bit")
    if not report.equal:
        raise typer.Exit(EXIT_INTERNAL)
