"""`drumroll suspend` and `drumroll resume`: a job gives its GPUs back, and goes on later."""

from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_INTERNAL, UserError
from drumroll_cli.cluster.where import Context, Job, Kubeconfig, Namespace, Where

if TYPE_CHECKING:
    from drumroll_cli.cluster.connection import Cluster
    from drumroll_cli.cluster.objects import JobView

_Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]


def suspend(
    job: Job,
    wait: _Wait = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Suspend a job: replicas hand their samples back, the trainer ends, and all but the store goes.

    No sample is lost or repeated, and the time does not count in the job's deadlines. `kubectl patch rlj JOB --type
    merge -p '{"spec":{"suspend":true}}'` does the same.

    Examples:

    `drumroll suspend first-light --wait`
    """
    _set(Where(kubeconfig, context, namespace), job, suspend=True, wait_for=wait)


def resume(
    job: Job,
    wait: _Wait = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let a suspended job go on from its last checkpoint.

    Examples:

    `drumroll resume first-light --wait`
    """
    _set(Where(kubeconfig, context, namespace), job, suspend=False, wait_for=wait)


def _set(where: Where, name: str, *, suspend: bool, wait_for: bool) -> None:
    from drumroll_cli.cluster.connection import on_cluster

    if not on_cluster(where, lambda cluster: _switch(cluster, name, suspend=suspend, wait_for=wait_for)):
        raise typer.Exit(EXIT_INTERNAL)


async def _switch(cluster: "Cluster", name: str, *, suspend: bool, wait_for: bool) -> bool:
    """Whether the job is as wanted, or on its way there."""
    from drumroll_cli.cluster.paths import job_path
    from drumroll_cli.cluster.reading import read_job
    from drumroll_cli.cluster.waiting import Wanted, wait

    job = await read_job(cluster, name)
    verb = "suspended" if suspend else "resumed"
    if job.ended_for_good:
        raise UserError(f"RLJob {name} has ended ({job.phase}): it cannot be {verb}")
    if job.suspend == suspend:
        typer.echo(f"{name} is {'suspended' if suspend else 'not suspended'} already ({job.phase})")
    else:
        await cluster.merge(job_path(cluster.namespace, name), {"spec": {"suspend": suspend}})
        typer.echo(f"{name} is being {verb}")
    if not wait_for:
        return True
    ended = await wait(cluster, name, Wanted(lambda look: _is_there(look, suspend=suspend), job.uid), typer.echo)
    return ended is not None and _is_there(ended, suspend=suspend) and ended.phase != "Failed"


def _is_there(job: "JobView | None", *, suspend: bool) -> bool:
    if job is None or job.ended_for_good:
        return True
    if not suspend:
        return job.seen and job.phase == "Running"
    # The phase says so from the beginning; the condition is true once the pods are gone.
    held = job.condition("Suspended")
    return job.seen and held is not None and held.status == "True"
