"""`drumroll scale`: more or fewer rollout replicas, while the job runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_INTERNAL, UserError
from drumroll_cli.cluster.where import Context, Job, Kubeconfig, Namespace, Where

if TYPE_CHECKING:
    from drumroll_cli.cluster.connection import Cluster
    from drumroll_cli.cluster.objects import JobView


def scale(
    job: Job,
    replicas: Annotated[int, typer.Argument(metavar="REPLICAS", min=1, help="Rollout replicas from now on.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until so many are ready, and no more are there.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change the number of rollout replicas. Those that go hand their samples back first; the trainer goes on.

    `kubectl scale rlj/JOB --replicas N` does the same, and so may an HPA or KEDA.

    Examples:

    `drumroll scale first-light 4 --wait`
    """
    from drumroll_cli.cluster.connection import on_cluster

    where = Where(kubeconfig, context, namespace)
    if not on_cluster(where, lambda cluster: _scale(cluster, job, replicas, wait_for=wait)):
        raise typer.Exit(EXIT_INTERNAL)


async def _scale(cluster: "Cluster", name: str, replicas: int, *, wait_for: bool) -> bool:
    """Whether the job is as wanted, or on its way there."""
    from drumroll_cli.cluster.paths import job_path
    from drumroll_cli.cluster.reading import read_job
    from drumroll_cli.cluster.waiting import Wanted, wait

    job = await read_job(cluster, name)
    if job.ended_for_good:
        raise UserError(f"RLJob {name} has ended ({job.phase}): it cannot be scaled")
    if job.wanted_replicas == replicas:
        typer.echo(f"{name} has {replicas} rollout replicas already")
    else:
        await cluster.merge(job_path(cluster.namespace, name, "scale"), {"spec": {"replicas": replicas}})
        typer.echo(f"{name} goes from {job.wanted_replicas} to {replicas} rollout replicas")
        if job.suspend:
            typer.echo(f"{name} is suspended: it takes effect once drumroll resume {name}")
    if not wait_for:
        return True
    ended = await wait(cluster, name, Wanted(lambda look: _is_there(look, replicas), job.uid), typer.echo)
    return ended is not None and ended.rollout_ready == replicas


def _is_there(job: "JobView | None", replicas: int) -> bool:
    if job is None or job.ended_for_good:
        return True
    return job.seen and job.rollout_ready == replicas == job.rollout_replicas
