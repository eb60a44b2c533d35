"""`drumroll cancel`: delete a job; its files stay on its volume."""

from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import UserError
from drumroll_cli.cluster.where import Context, Job, Kubeconfig, Namespace, Where

if TYPE_CHECKING:
    from drumroll_cli.cluster.connection import Cluster
    from drumroll_cli.cluster.objects import JobView


def cancel(
    job: Job,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job and its pods are gone.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete a job with its pods, its store and its Secrets. Weights, checkpoints and the archive stay on its volume.

    A job that is to go on later is suspended instead. `kubectl delete rlj JOB` does the same.

    Examples:

    `drumroll cancel first-light`

    `drumroll cancel first-light --yes --wait`
    """
    from drumroll_cli.cluster.connection import on_cluster
    from drumroll_cli.cluster.reading import read_job

    where = Where(kubeconfig, context, namespace)
    seen = on_cluster(where, lambda cluster: read_job(cluster, job))
    if not yes and not _agreed(seen):
        typer.echo(f"{job} is left as it is", err=True)
        raise typer.Exit(1)
    on_cluster(where, lambda cluster: _cancel(cluster, seen, wait_for=wait))


def _agreed(job: "JobView") -> bool:
    typer.echo(f"{consequences(job)}\n", err=True)
    try:
        return typer.confirm(f"Delete {job.name} in namespace {job.namespace}?", err=True)
    except typer.Abort:
        raise UserError(f"nobody answers: write --yes to delete {job.name} without a question") from None


def consequences(job: "JobView") -> str:
    """What deleting the job means, in sentences."""
    done = f" after step {job.step} of {job.steps}" if job.step is not None and job.steps else ""
    lines = [f"{job.name} is {job.phase}{done}."]
    if not job.ended_for_good:
        lines.append("What was trained since the last checkpoint is lost, and samples that are not trained yet.")
        lines.append(f"To go on later: drumroll suspend {job.name}")
    lines.append(f"Files stay on its volume{f' in {job.job_dir}' if job.job_dir else ''}.")
    return "\n".join(lines)


async def _cancel(cluster: "Cluster", job: "JobView", *, wait_for: bool) -> None:
    from drumroll_cli.cluster.paths import job_path
    from drumroll_cli.cluster.waiting import until_gone

    await cluster.delete(job_path(job.namespace, job.name), uid=job.uid)
    typer.echo(f"{job.name} is deleted; its pods get their grace to end")
    if wait_for:
        await until_gone(cluster, job, typer.echo)
