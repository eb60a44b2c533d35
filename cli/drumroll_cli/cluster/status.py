"""`drumroll status`: what jobs are doing, and what to do next."""

import json
import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from drumroll_cli.cluster.where import Context, Kubeconfig, Namespace, OptionalJob, Where


class Output(StrEnum):
    """Forms for programs."""

    JSON = "json"
    YAML = "yaml"


def status(
    job: OptionalJob = None,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="Print the objects themselves, for programs.")
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the jobs of a namespace, or one job: conditions, progress, lag, pods, restarts, Events, what to do next.

    `kubectl get rlj` and `kubectl describe rlj JOB` show the same facts.

    Examples:

    `drumroll status`

    `drumroll status first-light`

    `drumroll status first-light -o json | jq .status.phase`
    """
    from drumroll_cli.cluster.connection import on_cluster

    where = Where(kubeconfig, context, namespace)
    if output is not None:
        typer.echo(_written(on_cluster(where, lambda cluster: _objects(cluster, job, everywhere)), output))
        return
    from drumroll_cli.cluster.portrait import jobs_table, portrait
    from drumroll_cli.cluster.reading import read_jobs, read_portrait
    from drumroll_cli.cluster.screen import console

    if job is not None:
        console().print(portrait(on_cluster(where, lambda cluster: read_portrait(cluster, job))))
        return
    jobs = on_cluster(where, lambda cluster: read_jobs(cluster, everywhere=everywhere))
    if not jobs:
        place = "any namespace" if everywhere else f"namespace {namespace}" if namespace else "this namespace"
        typer.echo(f"no RLJobs in {place}: drumroll submit FILE makes one", err=True)
        return
    console().print(jobs_table(jobs, time.time(), namespaces=everywhere))


async def _objects(cluster: Any, job: str | None, everywhere: bool) -> dict[str, Any]:
    from drumroll_cli.cluster.paths import job_path, jobs_path

    if job is not None:
        found: dict[str, Any] = await cluster.get(job_path(cluster.namespace, job))
        return _plain(found)
    items = await cluster.list(jobs_path(None if everywhere else cluster.namespace))
    return {"apiVersion": "v1", "kind": "List", "items": [_plain(item) for item in items]}


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """Without the book-keeping of field managers, as kubectl shows objects."""
    return item | {"metadata": {key: value for key, value in item["metadata"].items() if key != "managedFields"}}


def _written(value: dict[str, Any], output: Output) -> str:
    if output is Output.JSON:
        return json.dumps(value, ensure_ascii=False, indent=2)
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip()
