"""`drumroll logs`: what a job's processes say, several side by side."""

import asyncio
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import UserError
from drumroll_cli.cluster.where import Context, Job, Kubeconfig, Namespace, Where

if TYPE_CHECKING:
    from drumroll_cli.cluster.connection import Cluster
    from drumroll_cli.cluster.log_sources import Source
    from drumroll_cli.cluster.objects import JobView

LOOK_AGAIN_S = 3.0
TAIL_OF_SEVERAL = 100


def logs(
    job: Job,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="Only scheduler, store, trainer or rollout.")
    ] = None,
    pod: Annotated[str | None, typer.Option("--pod", metavar="POD", help="Only this pod, such as rollout-0.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended, or Ctrl-C.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="What failed before: the last words of processes that were replaced.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="LINES", min=0, help="Last lines of each; default: 100 where several are shown."
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the logs of a job's processes; each line begins with its pod where several are shown.

    Pods that come later are followed too. A failed process is replaced by a new pod: its last words stay in the job's
    status (--previous), its whole log is where your cluster collects logs.

    Examples:

    `drumroll logs first-light -f`

    `drumroll logs first-light --pod rollout-1 --tail 50`

    `drumroll logs first-light --role trainer --previous`
    """
    from drumroll_cli.cluster.connection import on_cluster
    from drumroll_cli.cluster.log_sources import role_of

    chosen = _Choice(role_of(role), pod, tail)
    where = Where(kubeconfig, context, namespace)
    try:
        if previous:
            on_cluster(where, lambda cluster: _previous(cluster, job, chosen))
        else:
            on_cluster(where, lambda cluster: _logs(cluster, job, chosen, follow=follow))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@dataclass(frozen=True, slots=True)
class _Choice:
    role: str | None
    pod: str | None
    tail: int | None


async def _logs(cluster: "Cluster", name: str, chosen: _Choice, *, follow: bool) -> None:
    job, found = await _sources(cluster, name, chosen)
    if not found and not follow:
        from drumroll_cli.cluster.log_sources import nothing_to_show
        from drumroll_cli.cluster.objects import pod_line
        from drumroll_cli.cluster.reading import raw_pods

        pods = [pod_line(pod) for pod in await raw_pods(cluster, job)]
        raise UserError(nothing_to_show(job, pods, role=chosen.role, pod=chosen.pod))
    if not follow:
        several = len(found) > 1
        for number, source in enumerate(found):
            printer = _Printer(number if several else None, source.prefix)
            await _copy(cluster, source, printer, _query(source, chosen, several=several))
        return
    await _Follower(cluster, name, chosen).run()


async def _sources(cluster: "Cluster", name: str, chosen: _Choice) -> "tuple[JobView, list[Source]]":
    from drumroll_cli.cluster.log_sources import sources
    from drumroll_cli.cluster.reading import raw_pods, read_job

    job = await read_job(cluster, name)
    return job, sources(await raw_pods(cluster, job), role=chosen.role, pod=chosen.pod)


def _query(
    source: "Source", chosen: _Choice, *, several: bool, follow: bool = False
) -> dict[str, str | int | bool | None]:
    tail = chosen.tail if chosen.tail is not None else TAIL_OF_SEVERAL if several else None
    return {"container": source.container, "tailLines": tail, "follow": True if follow else None}


async def _copy(
    cluster: "Cluster", source: "Source", printer: "_Printer", query: dict[str, str | int | bool | None]
) -> None:
    from drumroll_cli.cluster.paths import core_path

    async for line in cluster.lines(core_path("pods", cluster.namespace, source.pod, "log"), query):
        printer.print(line)


@dataclass(slots=True)
class _Printer:
    """Prints one source's lines; a number chooses the prefix's colour, None: no prefix."""

    number: int | None
    prefix: str

    def print(self, line: str) -> None:
        from drumroll_cli.cluster.log_sources import COLOURS

        if self.number is None:
            typer.echo(line)
            return
        colour = COLOURS[self.number % len(COLOURS)] if sys.stdout.isatty() else None
        typer.echo(f"{typer.style(self.prefix, fg=colour)} | {line}")


@dataclass(slots=True)
class _Follower:
    """Follows all sources that match, those that come later too, until the job has ended and all have."""

    cluster: "Cluster"
    name: str
    chosen: _Choice
    _tasks: "dict[tuple[str, str], asyncio.Task[None]]" = field(default_factory=dict)

    async def run(self) -> None:
        from drumroll_cli.cluster.answers import ClusterRefusal, ClusterUnreachable

        while True:
            try:
                job, found = await _sources(self.cluster, self.name, self.chosen)
            except ClusterUnreachable as error:
                typer.echo(f"drumroll: {error}", err=True)
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            except ClusterRefusal as error:
                if error.code == 404 and self._tasks:  # The job was deleted while it was followed.
                    break
                raise
            self._follow_new(found)
            if job.ended_for_good:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=LOOK_AGAIN_S)

    def _follow_new(self, found: "list[Source]") -> None:
        first = not self._tasks
        for source in found:
            key = (source.uid, source.container)
            if key not in self._tasks:
                # A pod that comes later is shown from its first line.
                query = _query(source, self.chosen, several=first and len(found) > 1, follow=True)
                printer = _Printer(len(self._tasks), source.prefix)
                self._tasks[key] = asyncio.create_task(self._one(source, printer, query))

    async def _one(self, source: "Source", printer: _Printer, query: dict[str, str | int | bool | None]) -> None:
        from drumroll_cli.cluster.answers import ClusterRefusal, ClusterUnreachable

        try:
            await _copy(self.cluster, source, printer, query)
        except (ClusterRefusal, ClusterUnreachable) as error:
            typer.echo(f"drumroll: {source.prefix}: {error}", err=True)


async def _previous(cluster: "Cluster", name: str, chosen: _Choice) -> None:
    from drumroll_cli.cluster.log_sources import last_words
    from drumroll_cli.cluster.reading import read_job

    job = await read_job(cluster, name)
    lines = last_words(job, role=chosen.role)
    if job.phase == "Failed" and job.message:
        lines.append(f"the job: {job.message}")
    typer.echo("\n".join(lines) if lines else f"no failure of {name} was charged so far")
