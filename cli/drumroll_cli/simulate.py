"""`drumroll simulate`: how fast a job would be, on how many replicas, and what would make it faster."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from drumroll_planner.sim import SimJob
    from drumroll_planner.sim.scaling import Point

_FAST_SAMPLES = 30_000
"""More samples than this a fleet are simulated in the fast mode."""


def simulate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Job file (- for standard input).")],
    job: Annotated[str | None, typer.Option("--job", help="Name of the job, where the file holds several.")] = None,
    replicas: Annotated[
        str | None, typer.Option("--replicas", help="Numbers of replicas: 4, or 1,2,8, or 1..64. Default: the job's.")
    ] = None,
    planner: Annotated[str | None, typer.Option("--planner", help="Overrides spec.scheduler.planner.")] = None,
    costs: Annotated[
        str | None, typer.Option("--costs", metavar="FILE", help="Costs of `drumroll profile`, or a preset's name.")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option("--lengths", metavar="FILE", help="CSV or JSONL with answer lengths: tokens, row.")
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="PATH", help="Earlier answers for the planner: a run directory, or a file."),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option("--prompts", min=1, help="So many prompts, instead of reading the data set.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Simulate at most so many steps.")] = 40,
    kv_tokens: Annotated[
        int | None, typer.Option("--kv-tokens", min=1, help="KV capacity of a replica in tokens; default: unlimited.")
    ] = None,
    gpus: Annotated[int, typer.Option("--more-gpus", min=1, help="Say what so many more GPUs would do.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of lengths that are drawn.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Picture to write (.svg or .png). Default: <job>-simulation.svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for programs; no picture.")] = False,
) -> None:
    """Simulate a job with the scheduler's own policy, and print its times beside the lower bounds.

    Nothing is started. The order is the scheduler's own: a seeded shuffle, unless --history tells answers apart.
    Without --costs and --lengths the figures are those of a preset and of drawn answers: good for comparing, not for
    promising.

    Examples:

    `drumroll simulate job.yaml --replicas 1..64`

    `drumroll simulate job.yaml --costs costs.json --lengths lengths.csv --planner fifo`
    """
    from drumroll_planner.sim.scaling import sweep
    from rich.console import Console

    from drumroll_cli.local.jobfile import choose_job
    from drumroll_cli.simulating.fleets import Wanted, build, parse_sizes

    chosen = choose_job(file, job, lambda message: typer.echo(message, err=True))
    source_dir = Path.cwd() if file == "-" else Path(file).resolve().parent
    sim_job = build(chosen, source_dir, Wanted(planner, costs, lengths, prompts, steps, kv_tokens, seed, history))
    own = sim_job.num_replicas
    sizes = parse_sizes(replicas) if replicas is not None else [own]
    more = own + max(1, gpus // chosen.spec.rollout.tensor_parallel_size)
    mode = _mode(sim_job)
    points = {point.replicas: point for point in sweep(sim_job, [*sizes, own, more], mode=mode)}
    shown = [points[size] for size in sizes]
    if as_json:
        typer.echo(json.dumps([_row(point) for point in shown], indent=1))
        return
    console = Console()
    _report(console, sim_job, shown, points[own], points[more], gpus, mode)
    path = out or Path(f"{chosen.metadata.name}-simulation.svg")
    _draw(sim_job, shown, path, chosen.metadata.name)
    console.print(f"picture: {path}", highlight=False, soft_wrap=True)


def _mode(job: "SimJob") -> Any:
    return "policy" if job.num_tickets * job.rules.group_size <= _FAST_SAMPLES else "fast"


def _report(
    console: Any, job: "SimJob", shown: list["Point"], own: "Point", more: "Point", gpus: int, mode: str
) -> None:
    from drumroll_planner.asp import AspPlan
    from drumroll_planner.sim.scaling import more_sentence, plateau_sentence

    costs = job.replica_costs[0]
    console.print(
        f"{job.num_steps} steps of {job.rules.prompts_per_step} prompts with {job.rules.group_size} answers, "
        f"{job.lengths.mean():.0f} tokens on average, {job.lengths.max()} at most; bound {job.rules.max_policy_lag}, "
        f"target {job.rules.target_policy_lag}. Costs: {costs.name}{f' ({costs.source})' if costs.source else ''}. "
        f"Mode: {mode}.",
        highlight=False,
    )
    if isinstance(job.plan, AspPlan):
        choice = job.plan.explanation.choice
        order = "a seeded shuffle" if choice.shape is None else str(choice.shape)
        console.print(f"Order: {order}; {choice.reason}.", highlight=False)
    console.print(_table(shown))
    console.print("Seconds a step; no schedule gets below the bounds; left: share of the time above the largest.")
    console.print(plateau_sentence(shown), highlight=False)
    console.print(more_sentence(own, more, f"{gpus} more GPUs"), highlight=False)


def _table(points: list["Point"]) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("replicas", "s/step", "gener.", "trainer", "longest", "left", "trainer", "rollout", "mean", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    heads = ("", "", "bound", "bound", "bound", "", "idle", "idle", "lag", "lag")
    table.add_row(*heads, style="dim")
    for point in points:
        result, count = point.result, len(point.result.steps)
        bounds = (result.bounds.generation_s, result.bounds.trainer_s, result.bounds.longest_s)
        cells = [f"{value / count:.3g}" for value in bounds]
        binding = bounds.index(max(bounds))
        cells[binding] = f"[bold]{cells[binding]}[/bold]"
        idle = sum(result.rollout_idle) / len(result.rollout_idle)
        table.add_row(
            str(point.replicas),
            f"{point.step_s:.3g}",
            *cells,
            f"{point.left:.0%}",
            f"{result.trainer_idle:.0%}",
            f"{idle:.0%}",
            f"{result.lag_mean:.2f}",
            str(result.lag_max),
        )
    return table


def _row(point: "Point") -> dict[str, Any]:
    result = point.result
    return {
        "replicas": point.replicas,
        "stepSeconds": point.step_s,
        "iterationSeconds": result.iteration_s,
        "makespanSeconds": result.makespan_s,
        "generationBoundSeconds": result.bounds.generation_s,
        "trainerBoundSeconds": result.bounds.trainer_s,
        "longestBoundSeconds": result.bounds.longest_s,
        "trainerIdle": result.trainer_idle,
        "rolloutIdle": sum(result.rollout_idle) / len(result.rollout_idle),
        "lagMean": result.lag_mean,
        "lagMax": result.lag_max,
    }


def _draw(job: "SimJob", points: list["Point"], path: Path, name: str) -> None:
    from drumroll_planner.sim import simulate as run

    from drumroll_cli.simulating.pictures import draw

    result = run(job, mode=_mode(job), record=True)
    title = f"{name}, simulated: {job.num_replicas} replicas, {job.num_steps} steps"
    draw(result, points, path, title=title, max_lag=job.rules.max_policy_lag)
