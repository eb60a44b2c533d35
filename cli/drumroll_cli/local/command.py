"""What `drumroll run` does, in order: load, check, prepare, start, watch, end, draw."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from drumroll_operator.manifests import render_pods
from drumroll_operator.substrate import local_substrate
from rich.console import Console
from rich.live import Live

from drumroll import data, environment
from drumroll.api.spec import RLJob
from drumroll.errors import EXIT_INTERNAL, EXIT_OK, EXIT_USER, DataError, UserError
from drumroll.job import ResolvedJob
from drumroll_cli.local import gpus, preflight, rundir
from drumroll_cli.local.jobfile import choose_job, for_this_machine, read_job, with_overrides
from drumroll_cli.local.podspec import LocalPod, parse_pod
from drumroll_cli.local.process import adopt_orphans
from drumroll_cli.local.runner import LocalRunner, Outcome
from drumroll_cli.local.view import View, print_steps
from drumroll_cli.story import completed_steps


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `drumroll run`."""

    file: str | None
    job: str | None
    run_dir: Path | None
    resume: Path | None
    seed: int | None
    steps: int | None
    sets: tuple[str, ...]
    port: int | None
    accept_data_change: bool
    plain: bool


Ready = tuple[rundir.RunDir, list[LocalPod], int]
"""A run that can start: its directory, its pods, the lock on the directory."""


def execute(options: Options) -> int:
    """Run the job; the exit code.

    Raises:
        UserError: before anything was started; nothing is left behind then.
    """
    console = Console()
    began = time.monotonic()
    run, pods, lock = _resumed(options, console) if options.resume else _created(options, console)
    try:
        given = gpus.assign(pods, gpus.find())
        _warn_of_secrets(pods, console)
        with _quiet("drumroll.rpc"):
            outcome = asyncio.run(_watch(run, pods, given, console, plain=options.plain, began=began))
        _draw(run, console)
        return _last_word(run, outcome, console, seconds=time.monotonic() - began)
    finally:
        os.close(lock)


def _created(options: Options, console: Console) -> Ready:
    if options.file is None:
        raise UserError("give a job file, such as examples/first-light.yaml, or --resume RUN_DIR")
    job = choose_job(options.file, options.job, console.print)
    job = with_overrides(job, seed=options.seed, steps=options.steps, sets=options.sets)
    job = for_this_machine(job, lambda warning: console.print(warning, style="yellow"))
    source_dir = Path.cwd() if options.file == "-" else Path(options.file).parent
    path = options.run_dir or rundir.default_path(job, Path("runs"))
    with rundir.new(path) as lock:
        resolved = rundir.resolve(job, path, uid=rundir.new_uid(), source_dir=source_dir, port=options.port)
        pods = _pods(resolved, path)
        gpus.assign(pods, gpus.find())
        _check(job, resolved, path)
        info = _prepare(resolved, console)
        console.print(f"{job.metadata.name}: {info.num_prompts:,} prompts from {info.source} ({info.layout} layout)")
        run = rundir.create(job, resolved, path)
    console.print(f"run directory: {path}", highlight=False, soft_wrap=True)
    return run, pods, lock


def _resumed(options: Options, console: Console) -> Ready:
    path = options.resume
    if path is None or options.file is not None or options.run_dir is not None or options.seed is not None:
        raise UserError("--resume takes no job file, no --run-dir and no --seed: all of it is in the run directory")
    old = rundir.read(path)
    lock = rundir.hold(path)
    job = with_overrides(read_job(path / "source.json"), seed=None, steps=options.steps, sets=options.sets)
    _refuse_after_end(path, job)
    source_dir = Path(old.job.layout.source_dir)
    resolved = rundir.resolve(job, path, uid=old.job.uid, source_dir=source_dir, port=options.port)
    _check(job, resolved, path)
    changed = _data_change(resolved, accept=options.accept_data_change)
    if changed:
        console.print(f"warning: {changed}", style="yellow")
        _prepare(resolved, console)
        rundir.note_data_change(path)
    run = rundir.create(job, resolved, path)
    console.print(f"going on with {path}", highlight=False, soft_wrap=True)
    return run, _pods(resolved, path, accept_data_change=rundir.data_has_changed(path)), lock


def _refuse_after_end(path: Path, job: RLJob) -> None:
    """The end of a job is journaled: nothing can be trained behind it.

    Raises:
        UserError: another number of steps is asked of a run that is complete.
    """
    done, wanted = completed_steps(path), job.spec.steps
    if done is not None and wanted is not None and wanted != done:
        raise UserError(
            f"--steps {wanted}: {path} is complete after {done} steps; to train further, run another job with "
            f"resumeFrom: {path}"
        )


def _data_change(job: ResolvedJob, *, accept: bool) -> str | None:
    """What is different about the data set since the run began.

    Raises:
        DataError: something is, and that was not accepted.
    """
    layout = job.layout
    new = data.check(job.spec, model_dir=Path(layout.model_dir), source_dir=Path(layout.source_dir))
    old = data.PreparedDataset.open(Path(layout.data_dir), "train").info
    difference = data.describe_difference(old, new)
    if difference and not accept:
        raise DataError(f"{difference}. Bring the old data back, or say --accept-data-change")
    return difference


def _pods(job: ResolvedJob, path: Path, *, accept_data_change: bool = False) -> list[LocalPod]:
    cores = len(os.sched_getaffinity(0))
    manifests = render_pods(job, local_substrate(job, run_dir=str(path.resolve()), cores=cores))
    if accept_data_change:
        for manifest in manifests:
            if manifest["metadata"]["labels"]["drumroll.dev/role"] in ("scheduler", "trainer"):
                manifest["spec"]["containers"][0]["command"].append("--accept-data-change")
    return [parse_pod(manifest) for manifest in manifests]


def _check(job: RLJob, resolved: ResolvedJob, path: Path) -> None:
    """Everything that can be known to be wrong before a process starts."""
    from drumroll_rollout.rewards import check_reward

    parameters = preflight.require_model(job.spec, Path(resolved.layout.model_dir))
    need = preflight.needs(job.spec, parameters)
    if not gpus.find():
        preflight.require_memory(job.spec, need, preflight.available_memory())
    preflight.require_disk(need, path)
    check_reward(job.spec, Path(resolved.layout.source_dir))


def _prepare(job: ResolvedJob, console: Console) -> data.DatasetInfo:
    with console.status("reading and checking the data set"):
        return data.prepare(
            job.spec,
            model_dir=Path(job.layout.model_dir),
            source_dir=Path(job.layout.source_dir),
            out_dir=Path(job.layout.data_dir),
        )


def _warn_of_secrets(pods: list[LocalPod], console: Console) -> None:
    for name in sorted(
        {m for pod in pods for m in preflight.missing_secrets(pod.container.from_shell, environment.copy())}
    ):
        console.print(
            f"warning: {name} comes from a Secret on a cluster; here it is not set in your shell", style="yellow"
        )


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A scheduler that is not up yet is no news here: the view shows it."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _watch(
    run: rundir.RunDir, pods: list[LocalPod], given: dict[str, str], console: Console, *, plain: bool, began: float
) -> Outcome:
    """Run all processes and show what happens."""
    adopt_orphans()
    runner = LocalRunner(run, pods, given, _inherited())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, runner.interrupt)
    view = View(run.job.name, runner.board, runner.supervisors, began=began)
    live = Live(view, console=console, refresh_per_second=2) if console.is_terminal and not plain else None
    if live is None:
        runner.on_message = lambda message: console.print(message, highlight=False, style="dim")
    shown = asyncio.create_task(_show(view, runner, console, lines=live is None))
    try:
        with live or contextlib.nullcontext():
            outcome = await runner.run()
            view.refresh_history(time.monotonic())
            return outcome
    finally:
        shown.cancel()
        await asyncio.gather(shown, return_exceptions=True)
        end_orphans()


async def _show(view: View, runner: LocalRunner, console: Console, *, lines: bool) -> None:
    while True:
        new = view.refresh_history(time.monotonic())
        if lines and runner.board.status is not None:
            print_steps(console, new, runner.board.status.steps_total)
        await asyncio.sleep(0.5)


def _inherited() -> dict[str, str]:
    """The user's environment, with this interpreter's scripts (torchrun) first on the path."""
    env = environment.copy()
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    return env


def end_orphans() -> None:
    """Kill what the ended processes left behind; orphans are this process's children by now."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _draw(run: rundir.RunDir, console: Console) -> None:
    """The picture of the run; a run without any step has none."""
    from drumroll_cli.local.picture import draw

    path = run.path / "run.svg"
    try:
        if draw(run.metrics, run.timeline, path, title=run.job.name, max_lag=run.job.spec.max_policy_lag):
            console.print(f"picture: {path}", highlight=False, soft_wrap=True)
    except OSError as error:
        console.print(f"no picture: {path}: {error.strerror}", style="yellow", highlight=False, soft_wrap=True)


def _last_word(run: rundir.RunDir, outcome: Outcome, console: Console, *, seconds: float) -> int:
    minutes, rest = divmod(round(seconds), 60)
    if outcome.kind == "complete":
        console.print(f"{run.job.name} is complete after {minutes}:{rest:02d}", style="bold green", highlight=False)
        console.print(f"weights: {run.job.layout.weights_dir}", highlight=False, soft_wrap=True)
        return EXIT_OK
    if outcome.kind == "stopped":
        console.print(f"stopped; go on with: drumroll run --resume {run.path}", style="bold yellow", highlight=False)
        return EXIT_INTERNAL
    console.print(f"{run.job.name} failed: {outcome.reason}", style="bold red", highlight=False, soft_wrap=True)
    console.print(f"logs: {run.logs}", highlight=False, soft_wrap=True)
    return EXIT_USER if outcome.users_mistake else EXIT_INTERNAL
