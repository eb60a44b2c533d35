"""Jobs as tables and pictures of text. Pure: values in, renderables out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drumroll_cli.cluster.advice import next_steps
from drumroll_cli.cluster.objects import Condition, EventLine, JobView, PodLine, age, span

_COLOURS = {
    "Running": "green",
    "Complete": "green",
    "Failed": "red",
    "Suspended": "yellow",
    "Pending": "yellow",
    "Starting": "cyan",
}
_GOOD_WHEN_FALSE = ("Degraded", "Failed", "Suspended")
MOST_EVENTS = 8
LONGEST_MESSAGE = 600
BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Portrait:
    """All that `drumroll status JOB` shows."""

    job: JobView
    pods: tuple[PodLine, ...]
    events: tuple[EventLine, ...]
    now: float
    notes: tuple[str, ...] = ()
    """What could not be seen, and why."""


def portrait(seen: Portrait) -> RenderableType:
    """Everything about one job."""
    parts: list[RenderableType] = [_head(seen.job, seen.now), _figures(seen.job)]
    if seen.job.message:
        parts.append(Text(_cut(seen.job.message)))
    if seen.job.conditions:
        parts += [Text(), conditions_table(seen.job.conditions, seen.now)]
    if seen.pods:
        parts += [Text(), pods_table(seen.pods, seen.now)]
    parts += _restarts(seen.job, seen.now)
    if seen.events:
        parts += [Text(), _events(seen.events, seen.now)]
    parts.append(Text())
    parts += [Text(f"note: {note}", style="dim") for note in seen.notes]
    steps = next_steps(seen.job)
    parts.append(Text("What next", style="bold"))
    parts += [Padding(Text(step), (0, 0, 0, 2)) for step in steps]
    return Group(*parts)


def _head(job: JobView, now: float) -> Text:
    phase = "Deleting" if job.deleting else job.phase
    line = Text.assemble((job.name, "bold"), "  ", (phase, _COLOURS.get(phase, "yellow")))
    line.append(f"  in {job.namespace}", style="dim")
    if job.started is not None:
        until = job.ended if job.ended is not None else now
        line.append(f"  {'ran' if job.ended is not None else 'runs for'} {span(until - job.started)}", style="dim")
    elif job.created is not None:
        line.append(f"  created {age(job.created, now)} ago", style="dim")
    return line


def _figures(job: JobView) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    if job.steps is not None or job.step is not None:
        table.add_row("steps", progress(job, BAR_WIDTH))
    if job.version is not None:
        table.add_row("version", str(job.version))
    if job.lag is not None:
        bound = f"  (bound {job.max_lag})" if job.max_lag is not None else ""
        table.add_row("lag", f"{job.lag.least} / {job.lag.mean:.2f} / {job.lag.most} min / mean / max{bound}")
    if job.samples is not None:
        table.add_row("samples", f"{job.samples:,}")
    draining = f", {job.rollout_draining} draining" if job.rollout_draining else ""
    table.add_row(
        "rollout", f"{job.rollout_ready}/{job.rollout_replicas} ready, {job.wanted_replicas} wanted{draining}"
    )
    table.add_row("trainer", f"{job.trainer_ready}/{job.trainer_replicas} ready")
    if job.gpus:
        table.add_row("gpus", str(job.gpus))
    if job.job_dir:
        table.add_row("folder", Text(job.job_dir, overflow="fold"))
    return table


def progress(job: JobView, width: int) -> RenderableType:
    """The bar of a job's steps, with numbers and the time that is left."""
    done, total = job.step or 0, job.steps or 0
    row = Table.grid(padding=(0, 1))
    numbers = f"{done}/{total}" if total else str(done)
    left = f"about {span(job.eta_s)} left" if job.eta_s and not job.ended_for_good else ""
    row.add_row(ProgressBar(total=max(1, total), completed=min(done, max(1, total)), width=width), f"{numbers}  {left}")
    return row


def conditions_table(conditions: Sequence[Condition], now: float) -> Table:
    """All conditions; those that are not as they should be in colour."""
    table = _table("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")
    for item in conditions:
        good = item.status == ("False" if item.type in _GOOD_WHEN_FALSE else "True")
        waits = item.type in ("Complete", "Progressing", "Suspended") or item.status == "Unknown"
        style = "" if good else "dim" if item.type == "Complete" else "yellow" if waits else "red"
        since = age(item.since, now)
        table.add_row(item.type, item.status, since, item.reason, Text(_cut(item.message)), style=style)
    return table


def pods_table(pods: Sequence[PodLine], now: float) -> Table:
    """A line per pod."""
    table = _table("POD", "STATE", "READY", "GPUS", "AGE", "NODE", "WHY")
    for pod in pods:
        style = "" if pod.ready or pod.phase == "Succeeded" else "red" if pod.why else "yellow"
        gpus = str(pod.gpus) if pod.gpus else ""
        ready = "yes" if pod.ready else "no"
        table.add_row(pod.name, pod.state, ready, gpus, age(pod.created, now), pod.node, _cut(pod.why), style=style)
    return table


def jobs_table(jobs: Sequence[JobView], now: float, *, namespaces: bool) -> Table:
    """A line per job, as `kubectl get rlj` has it, with a bar."""
    table = _table(
        *(["NAMESPACE"] if namespaces else []), "NAME", "PHASE", "STEPS", "VERSION", "LAG", "ROLLOUT", "GPUS"
    )
    table.add_column("AGE")
    for job in jobs:
        phase = "Deleting" if job.deleting else job.phase
        table.add_row(
            *([job.namespace] if namespaces else []),
            job.name,
            Text(phase, style=_COLOURS.get(phase, "yellow")),
            progress(job, 20),
            "-" if job.version is None else str(job.version),
            "-" if job.lag is None else f"{job.lag.mean:.2f}",
            f"{job.rollout_ready}/{job.wanted_replicas}",
            str(job.gpus or ""),
            age(job.created, now),
        )
    return table


def _restarts(job: JobView, now: float) -> list[RenderableType]:
    rows = [item for item in job.restarts if item.count]
    if not rows:
        return []
    table = _table("RESTARTS", "COUNT", "LAST", "REASON", "LAST WORDS")
    for item in rows:
        table.add_row(item.role, str(item.count), age(item.at, now), item.reason, Text(_cut(item.message)))
    return [Text(), table]


def _events(events: Sequence[EventLine], now: float) -> Table:
    table = _table("EVENT", "AGE", "ABOUT", "MESSAGE")
    for event in sorted(events, key=lambda event: event.at)[-MOST_EVENTS:]:
        times = f" (x{event.count})" if event.count > 1 else ""
        style = "yellow" if event.type == "Warning" else ""
        table.add_row(event.reason, age(event.at, now), event.about, Text(_cut(event.note) + times), style=style)
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _cut(text: str) -> str:
    """A long message keeps its beginning and its end: a cause stands at either."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    half = LONGEST_MESSAGE // 2
    return f"{text[:half]} [...] {text[-half:]}"
