"""Which cluster, which namespace, which job: the options that all verbs on a cluster share, and their completion."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class Where:
    """What the command line says of the cluster; None: as the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the namespace's jobs; none where the cluster does not answer within two seconds."""
    given: dict[str, Any] = ctx.params
    where = Where(given.get("kubeconfig"), given.get("context"), given.get("namespace"))
    from drumroll.errors import DrumrollError
    from drumroll_cli.cluster.connection import Cluster, on_cluster
    from drumroll_cli.cluster.paths import jobs_path

    async def names(cluster: Cluster) -> list[str]:
        jobs = await cluster.list(jobs_path(cluster.namespace))
        return [job["metadata"]["name"] for job in jobs]

    try:
        return [name for name in on_cluster(where, names, timeout_s=2.0) if name.startswith(incomplete)]
    except DrumrollError:
        return []


Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig; default: its current one.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's, else default.")
]
Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", help="File; default: $KUBECONFIG, else ~/.kube/config.")
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the RLJob.", autocompletion=complete_jobs)]
OptionalJob = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="Name of an RLJob; default: all of them.", autocompletion=complete_jobs),
]
