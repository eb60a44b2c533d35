"""`drumroll run`: a job on this machine."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Job file (- for standard input); not with --resume.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Name of the job, where the file holds several.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Where to write; default: runs/<name>, or the next free number.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN_DIR", help="Go on with an earlier run, where it stopped.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Overrides spec.seed.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Overrides spec.steps; with --resume: of a run that is not complete.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Overrides a field, such as rollout.replicas=4."),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the scheduler; default: a free one.")] = None,
    accept_data_change: Annotated[
        bool, typer.Option("--accept-data-change", help="Resume although the data set is another one now.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="A line per step instead of the live view.")] = False,
) -> None:
    """Run a job here: all its processes, with a store, ports and a directory of its own.

    Ctrl-C lets the rollouts hand their samples back and stops; --resume goes on from there. Exit code 0: the job is
    complete; 1: it failed or was stopped; 2: the job, its data or its model is at fault.

    Examples:

    `drumroll run examples/first-light.yaml`

    `drumroll run job.yaml --set rollout.replicas=4 --seed 1`

    `drumroll run --resume runs/first-light`
    """
    from drumroll import environment

    # gRPC reads it when it is imported; nothing here calls gRPC in a forked child.
    environment.set_library_variables({"GRPC_ENABLE_FORK_SUPPORT": "0"})
    from drumroll_cli.local.command import Options, execute

    options = Options(
        file=file,
        job=job,
        run_dir=run_dir,
        resume=resume,
        seed=seed,
        steps=steps,
        sets=tuple(sets or ()),
        port=port,
        accept_data_change=accept_data_change,
        plain=plain,
    )
    raise typer.Exit(execute(options))
