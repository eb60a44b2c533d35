"""A job's processes as `drumroll top JOB` shows them: the scheduler's word about each, beside its pod. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drumroll_proto.v1 import scheduler_pb2
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drumroll_cli.cluster.objects import JobView, PodLine, age
from drumroll_cli.cluster.portrait import progress

RATE_OVER_S = 2.0
"""Rates are told once readings lie so far apart."""


@dataclass(slots=True)
class Rates:
    """Tokens a second by replica, from counters of two readings."""

    _first: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def add(self, status: scheduler_pb2.StatusReply, now: float) -> Mapping[str, float]:
        """Take in a reading; the newest rates. A replica that was started again begins anew."""
        for replica in status.replicas:
            total = replica.gauges.get("tokens_total", 0.0)
            at, before, instance = self._first.get(replica.name, (now, total, replica.instance))
            if instance != replica.instance or total < before:
                at, before = now, total
                self._rates.pop(replica.name, None)
            elif now - at >= RATE_OVER_S:
                self._rates[replica.name] = (total - before) / (now - at)
                at, before = now, total
            self._first[replica.name] = (at, before, replica.instance)
        return self._rates


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is shown of one job."""

    job: JobView
    pods: Sequence[PodLine]
    status: scheduler_pb2.StatusReply | None
    """None: the scheduler's word is not there (yet)."""
    rates: Mapping[str, float]
    now: float
    note: str = ""
    """Why the scheduler's word is missing."""


def fleet(seen: Fleet) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [_head(seen), progress(_with_steps(seen), 40)]
    if seen.status is not None:
        parts.append(_queue(seen.status, seen.rates))
    parts += [Text(), _processes(seen)]
    if seen.status is not None:
        parts += [Text(f"{note.reason}: {note.message}", style="yellow") for note in list(seen.status.notes)[-3:]]
    if seen.note:
        parts += [Text(), Text(seen.note, style="dim")]
    return Group(*parts)


def _head(seen: Fleet) -> Text:
    job, status = seen.job, seen.status
    line = Text.assemble((job.name, "bold"), "  ", (job.phase, "green" if job.phase == "Running" else "yellow"))
    version = status.version if status is not None else job.version
    if version is not None:
        line.append(f"  version {version}")
    lag = dict(status.recent[-1].stats) if status is not None and status.recent else {}
    if lag:
        bound = f" of {job.max_lag}" if job.max_lag is not None else ""
        low, mean, high = lag.get("lag_min", 0), lag.get("lag_mean", 0), lag.get("lag_max", 0)
        line.append(f"  lag {low:.0f} / {mean:.2f} / {high:.0f}{bound}")
    elif job.lag is not None:
        line.append(f"  lag {job.lag.least} / {job.lag.mean:.2f} / {job.lag.most}")
    if status is not None and status.reason:
        line.append(f"  {status.reason}", style="dim")
    return line


def _with_steps(seen: Fleet) -> JobView:
    """The job with the scheduler's newer count of steps."""
    from dataclasses import replace

    if seen.status is None:
        return seen.job
    return replace(seen.job, step=seen.status.steps_done, steps=seen.status.steps_total or seen.job.steps)


def _queue(status: scheduler_pb2.StatusReply, rates: Mapping[str, float]) -> Text:
    t = status.tickets
    text = (
        f"groups  generating {t['leased']}, waiting {t['streamed']}, decided {t['decided']}, uncovered {t['trained']}"
    )
    return Text(f"{text}   tokens/s {sum(rates.values()):,.0f}" if rates else text)


def _processes(seen: Fleet) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("POD", "STATE", "READY", "VERSION", "BEHIND", "LEASES", "TOKENS/S", "KV", "HEARD", "AGE", "WHY"):
        table.add_column(title)
    replicas = {replica.name: replica for replica in seen.status.replicas} if seen.status is not None else {}
    for pod in seen.pods:
        style = "" if pod.ready or pod.phase == "Succeeded" else "yellow"
        figures = _figures(replicas.pop(pod.short, None), seen)
        ready = "yes" if pod.ready else "no"
        table.add_row(pod.short, pod.state, ready, *figures, age(pod.created, seen.now), pod.why[:80], style=style)
    for name, replica in sorted(replicas.items()):  # Known to the scheduler, without a pod: gone, or not to be seen.
        table.add_row(name, "no pod", "", *_figures(replica, seen), "", "", style="dim")
    return table


def _figures(replica: scheduler_pb2.ReplicaStatus | None, seen: Fleet) -> tuple[str, ...]:
    """Version, how far behind, leases, tokens a second, KV use, last heartbeat."""
    if replica is None or seen.status is None:
        return ("",) * 6
    behind = str(max(0, seen.status.version - replica.version)) if replica.attested else "-"
    rate = f"{seen.rates[replica.name]:,.0f}" if replica.name in seen.rates else "-"
    draining = " draining" if replica.draining else ""
    return (
        str(replica.version) if replica.attested else "-",
        behind,
        f"{replica.leases}/{replica.slots}{draining}",
        rate,
        f"{100 * replica.gauges.get('kv_usage', 0.0):.0f} %",
        f"{replica.silent_s:.0f}s ago",
    )
