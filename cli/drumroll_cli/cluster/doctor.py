"""`drumroll doctor`: whether a cluster and a namespace are ready for jobs, and for these ones."""

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_INTERNAL, EXIT_USER
from drumroll_cli.cluster.where import Context, Kubeconfig, Namespace, Where

if TYPE_CHECKING:
    from drumroll.api.spec import RLJob
    from drumroll_cli.cluster.findings import Line

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Also check what the jobs of this file ask for.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check a cluster: API server, definition of RLJobs, operator, your rights, GPUs, volumes; with a file: its jobs.

    Each line says ok, warn or fail, and what to do. Nothing is created; what you may not look at is said. Exit code 0:
    nothing failed; 1: something did; 2: the file or the kubeconfig is at fault.

    Examples:

    `drumroll doctor -n research`

    `drumroll doctor -f job.yaml -n research`
    """
    from drumroll_cli.cluster.connection import on_cluster
    from drumroll_cli.cluster.survey import own_fields, survey

    jobs = _jobs(file) if file is not None else []
    where = Where(kubeconfig, context, namespace or _namespace_of(jobs))
    seen = on_cluster(where, lambda cluster: survey(cluster, jobs, time.time()))
    from drumroll_cli.cluster.checks import cluster_lines
    from drumroll_cli.cluster.job_checks import job_lines

    lines = [*cluster_lines(seen, own_fields()), *(line for job in jobs for line in job_lines(job, seen))]
    failed = any(line.level == "fail" for line in lines)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [asdict(line) for line in lines]}, indent=1))
    else:
        _print(lines)
    if failed:
        raise typer.Exit(EXIT_INTERNAL)


def _jobs(file: str) -> "list[RLJob]":
    from drumroll.api.loading import read_jobs
    from drumroll_cli.validate import report

    loaded = read_jobs([file])
    report(loaded)
    if loaded.problems:
        raise typer.Exit(EXIT_USER)
    return [entry.job for entry in loaded.jobs]


def _namespace_of(jobs: "list[RLJob]") -> str | None:
    """The namespace that all jobs of the file name; None: they name none, or several."""
    named = {job.metadata.namespace for job in jobs if "namespace" in job.metadata.model_fields_set}
    return named.pop() if len(named) == 1 else None


def _print(lines: "list[Line]") -> None:
    for line in lines:
        level = typer.style(f"{line.level:<4}", fg=_COLOURS[line.level])
        typer.echo(f"{level}  {line.subject}: {line.found}")
        if line.advice:
            typer.echo(f"      -> {line.advice}")
    count = {level: sum(line.level == level for line in lines) for level in _COLOURS}
    typer.echo(f"{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed")
