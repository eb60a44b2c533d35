"""`drumroll submit`: create jobs on a cluster, all of them or none."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_INTERNAL, EXIT_USER, UserError
from drumroll_cli.cluster.where import Context, Kubeconfig, Namespace, Where

if TYPE_CHECKING:
    from drumroll.api.loading import LoadedJob
    from drumroll_cli.cluster.connection import Cluster
    from drumroll_cli.cluster.objects import JobView


def submit(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Job files; - is standard input.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Overrides a field, such as rollout.replicas=4."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the API server check the jobs; create nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the jobs: exit code 0 where all complete, 1 else.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check job files here, let the API server check them, then create the jobs.

    Nothing is created unless all jobs pass. A job that is there already is never changed: what differs is told, and
    what to do. `kubectl apply -f FILE` creates and changes jobs as well.

    Examples:

    `drumroll submit job.yaml`

    `drumroll submit job.yaml --set rollout.replicas=4 --wait`

    `drumroll submit job.yaml -n research --dry-run`
    """
    from drumroll_cli.cluster.connection import on_cluster

    jobs = _checked(files, tuple(sets or ()))
    where = Where(kubeconfig, context, namespace)
    try:
        ended = on_cluster(where, lambda cluster: _submit(cluster, jobs, namespace, dry_run=dry_run, wait_for=wait))
    except KeyboardInterrupt:
        typer.echo("not waiting any more; the jobs go on (drumroll status)", err=True)
        raise typer.Exit(130) from None
    if any(job is None or job.phase != "Complete" for job in ended):
        raise typer.Exit(EXIT_INTERNAL)


def _checked(files: list[str], sets: tuple[str, ...]) -> "list[LoadedJob]":
    """The files' jobs with the overrides; problems are told as `drumroll validate` tells them."""
    from drumroll.api.loading import read_jobs
    from drumroll_cli.cluster.overriding import overridden
    from drumroll_cli.validate import report

    loaded = read_jobs(files)
    report(loaded)
    if count := len(loaded.problems):
        typer.echo(f"{count} problem{'s' if count > 1 else ''} found; nothing was sent to the cluster", err=True)
        raise typer.Exit(EXIT_USER)
    return [overridden(entry, sets) for entry in loaded.jobs]


async def _submit(
    cluster: "Cluster", jobs: "list[LoadedJob]", namespace: str | None, *, dry_run: bool, wait_for: bool
) -> "list[JobView | None]":
    """Create the jobs; with `wait_for` the jobs as they ended."""
    from drumroll_cli.cluster.answers import ClusterRefusal
    from drumroll_cli.cluster.paths import jobs_path
    from drumroll_cli.cluster.submission import body_of, namespace_of

    new, problems, there = [], [], []
    for entry in jobs:
        place = namespace_of(entry.job, namespace, cluster.namespace)
        body = body_of(entry.job, place)
        try:
            await cluster.create(jobs_path(place), body, dry_run=True)
            new.append((entry, place, body))
        except ClusterRefusal as error:
            if error.code != 409:
                problems += [f"{entry.file}: {entry.job.metadata.name}: {line}" for line in str(error).splitlines()]
                continue
            if problem := await _judge_existing(cluster, entry, place):
                problems.append(problem)
            else:
                there.append((entry, place))
    if problems:
        raise UserError("\n".join([*problems, "nothing was created"]))
    for entry, place in there:
        typer.echo(f"{entry.job.metadata.name} is there already, as {entry.file} says, in namespace {place}")
    for entry, place, body in new:
        if not dry_run:
            await cluster.create(jobs_path(place), body)
        done = "would be created" if dry_run else "created"
        typer.echo(f"{entry.job.metadata.name} {done} in namespace {place}")
    if dry_run:
        return []
    placed = [(entry.job.metadata.name, place) for entry, place in there] + [
        (entry.job.metadata.name, place) for entry, place, _ in new
    ]
    if not wait_for:
        _tell_next(placed)
        return []
    return [await _wait(cluster, name, place) for name, place in placed]


async def _judge_existing(cluster: "Cluster", entry: "LoadedJob", place: str) -> str | None:
    """What to do about a job that is there; None where it is just as the file says, and has not ended."""
    from drumroll_cli.cluster.objects import job_view
    from drumroll_cli.cluster.paths import job_path
    from drumroll_cli.cluster.submission import differences, exists_already

    name = entry.job.metadata.name
    there = await cluster.get(job_path(place, name))
    job, found = job_view(there), differences(there, entry.job)
    if job.deleting:
        return f"RLJob {name} is being deleted: wait until it is gone (drumroll status {name}), then submit again"
    if found == [] and not job.ended_for_good:
        return None
    return exists_already(name, job.phase, found, entry.file)


def _tell_next(placed: list[tuple[str, str]]) -> None:
    for name, place in placed:
        typer.echo(f"  drumroll status {name} -n {place}    drumroll logs {name} -n {place} -f")


async def _wait(cluster: "Cluster", name: str, place: str) -> "JobView | None":
    from drumroll_cli.cluster.reading import read_job
    from drumroll_cli.cluster.waiting import Wanted, wait

    began = time.monotonic()
    inside = cluster.within(place)
    uid = (await read_job(inside, name)).uid
    wanted = Wanted(lambda job: job is not None and job.ended_for_good, uid)
    job = await wait(inside, name, wanted, typer.echo)
    if job is None:
        typer.echo(f"{name} was deleted", err=True)
    elif job.phase == "Complete":
        from drumroll_cli.cluster.objects import span

        typer.echo(f"{name} is complete after {span(time.monotonic() - began)}: {job.job_dir}")
    else:
        typer.echo(f"{name} failed: {job.message} (drumroll status {name} -n {place})", err=True)
    return job
