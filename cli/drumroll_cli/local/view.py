"""The live terminal view of a run; without a terminal, a line per trained step."""

import time
from collections.abc import Sequence

from drumroll_proto.v1 import scheduler_pb2
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drumroll_cli.local.runner import Board
from drumroll_cli.local.supervisor import Supervisor

BLOCKS = "▁▂▃▄▅▆▇█"
MESSAGES = 4
RECENT = 10
"""Steps that the reward is a mean of."""
FIGURES_WIDTH = 40
"""Columns that a row takes beside its curve."""


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last values as a row of blocks."""
    tail = list(values)[-width:]
    if not tail:
        return ""
    low, high = min(tail), max(tail)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in tail)


def step_line(step: scheduler_pb2.StepStatus, total: int) -> str:
    """One trained step in a line."""
    s = step.stats
    return (
        f"step {step.step + 1}/{total}  version {step.version}  reward {s.get('reward/mean', 0.0):.3f}  "
        f"lag {s.get('lag_min', 0):.0f}/{s.get('lag_mean', 0):.1f}/{s.get('lag_max', 0):.0f}  "
        f"length {s.get('response_length/mean', 0):.0f}  loss {s.get('actor/pg_loss', 0.0):+.4f}  "
        f"{s.get('timing_s/step', 0.0):.1f} s"
    )


class History:
    """Rewards by step, kept over the short memory of a status."""

    def __init__(self) -> None:
        self.rewards: dict[int, float] = {}
        self._tokens: tuple[float, float] | None = None
        self.tokens_per_s = 0.0

    def add(self, status: scheduler_pb2.StatusReply, now: float) -> list[scheduler_pb2.StepStatus]:
        """Take in a status; the steps that are new."""
        new = [step for step in status.recent if step.step not in self.rewards]
        for step in status.recent:
            self.rewards[step.step] = step.stats.get("reward/mean", 0.0)
        made = sum(replica.gauges.get("tokens_total", 0.0) for replica in status.replicas)
        if self._tokens and now > self._tokens[0] + 2.0:
            self.tokens_per_s = max(0.0, made - self._tokens[1]) / (now - self._tokens[0])
            self._tokens = (now, made)
        self._tokens = self._tokens or (now, made)
        return new


class View:
    """What a terminal shows of a run."""

    def __init__(self, name: str, board: Board, supervisors: Sequence[Supervisor], *, began: float) -> None:
        self._name, self._board, self._supervisors, self._began = name, board, supervisors, began
        self.history = History()

    def refresh_history(self, now: float) -> list[scheduler_pb2.StepStatus]:
        """Take in the newest status; the steps that are new."""
        return self.history.add(self._board.status, now) if self._board.status else []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._render(min(80, max(20, options.max_width - FIGURES_WIDTH)))

    def _render(self, width: int) -> RenderableType:
        """All of it; `width` is that of the curves and bars."""
        status = self._board.status
        head = self._head(status)
        if status is None:
            return Group(head, self._processes(None))
        figures = self._figures(status, width)
        parts: list[RenderableType] = [head, self._bar(status, width), figures, self._processes(status)]
        for note in list(status.notes)[-2:]:
            parts.append(Text(f"{note.reason}: {note.message}", style="yellow"))
        parts += [Text(message, style="dim") for message in self._board.messages[-MESSAGES:]]
        return Group(*parts)

    def _head(self, status: scheduler_pb2.StatusReply | None) -> Text:
        phase = "Stopping" if self._board.stopping else status.phase if status else "Starting"
        line = Text.assemble((self._name, "bold"), "  ", (phase, "green" if phase == "Running" else "yellow"))
        line.append(f"  {clock(time.monotonic() - self._began)}")
        if status and status.reason:
            line.append(f"  {status.reason}", style="dim")
        return line

    def _bar(self, status: scheduler_pb2.StatusReply, width: int) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        total = max(1, status.steps_total)
        bar = ProgressBar(total=total, completed=status.steps_done, width=width)
        row.add_row("steps", bar, f"{status.steps_done}/{status.steps_total}  {self._eta(status)}")
        return row

    def _eta(self, status: scheduler_pb2.StatusReply) -> str:
        times = [step.stats.get("timing_s/step", 0.0) for step in status.recent]
        if not times or status.steps_done >= status.steps_total:
            return ""
        return f"about {clock(sum(times) / len(times) * (status.steps_total - status.steps_done))} left"

    def _figures(self, status: scheduler_pb2.StatusReply, width: int) -> RenderableType:
        t = status.tickets
        rewards = [value for _, value in sorted(self.history.rewards.items())]
        mean = f"{sum(rewards[-RECENT:]) / len(rewards[-RECENT:]):.3f}" if rewards else "-"
        table = Table.grid(padding=(0, 2))
        table.add_row("reward", mean, f"{sparkline(rewards, width)}  mean of {RECENT}".strip())
        if "eval_step" in status.gauges:
            held_out, step = status.gauges["eval_reward_mean"], status.gauges["eval_step"]
            table.add_row("eval", f"{held_out:.3f}", f"mean reward on held-out prompts after {step:.0f} steps")
        table.add_row("lag", _lag(status), "policy versions: min / mean / max of the last step")
        table.add_row("tokens/s", f"{self.history.tokens_per_s:,.0f}", f"weights: version {status.newest.version}")
        out = t["leased"] + t["streamed"] + t["decided"]
        queue = f"generating {t['leased']}, waiting {t['streamed']}, decided {t['decided']}, uncovered {t['trained']}"
        table.add_row("groups", str(out), queue)
        return table

    def _processes(self, status: scheduler_pb2.StatusReply | None) -> RenderableType:
        replicas = {replica.name: replica for replica in status.replicas} if status else {}
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for title in ("process", "state", "version", "samples", "kv"):
            table.add_column(title)
        for supervisor in self._supervisors:
            name = supervisor.pod.name
            state = supervisor.state + (f" ({supervisor.restarts} restarts)" if supervisor.restarts else "")
            replica = replicas.get(name)
            if replica is None:
                version = str(status.newest.version) if status and supervisor.pod.role == "trainer" else ""
                table.add_row(name, state, version, "", "")
            else:
                version = str(replica.version) if replica.attested else "-"
                kv = f"{100 * replica.gauges.get('kv_usage', 0.0):.0f} %"
                table.add_row(name, state, version, f"{replica.leases}/{replica.slots}", kv)
        return table


def _lag(status: scheduler_pb2.StatusReply) -> str:
    if not status.recent:
        return "-"
    last = status.recent[-1].stats
    return f"{last.get('lag_min', 0):.0f} / {last.get('lag_mean', 0):.2f} / {last.get('lag_max', 0):.0f}"


def print_steps(console: Console, steps: Sequence[scheduler_pb2.StepStatus], total: int) -> None:
    """For logs: a line per step."""
    for step in steps:
        console.print(step_line(step, total), highlight=False)


def clock(seconds: float) -> str:
    """1:05, or 2:01:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
