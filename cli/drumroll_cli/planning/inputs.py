"""From a job file and the command line to a plan: prompts, earlier answers, costs."""

import csv
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import typer
from drumroll_planner import records as r
from drumroll_planner.asp import AspPlan, AspPlanner, Choosing, FleetModel
from drumroll_planner.lengths import Groups, LengthModels, Prompts, log
from drumroll_planner.plan import PassInputs
from drumroll_planner.rules import Rules
from drumroll_scheduler.plan_process import prompts_of
from drumroll_scheduler.rules import rules_of

from drumroll import data
from drumroll.api.spec import RLJob
from drumroll.errors import UserError
from drumroll.job import Endpoints, Layout, ResolvedJob
from drumroll_cli.local.jobfile import choose_job
from drumroll_cli.simulating.fleets import read_costs
from drumroll_cli.story import JobStory, find_job_dir, read_story

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    job: str | None
    history: Path | None
    costs: str | None
    replicas: int | None
    prompts: int | None
    epoch: int


def make(file: str, wanted: Wanted) -> AspPlan:
    """The plan of a pass.

    Raises:
        UserError: job, data, history or costs are not there.
    """
    job = choose_job(file, wanted.job, lambda message: typer.echo(message, err=True))
    source_dir = Path.cwd() if file == "-" else Path(file).resolve().parent
    spec = job.spec
    prompts = _prompts(job, source_dir, wanted)
    rules = _rules(job, len(prompts))
    models = LengthModels(
        prompts, limit=spec.data.max_response_tokens, seed=spec.seed, model=spec.scheduler.length_model
    )
    if wanted.history is not None:
        for groups in _history(wanted.history, num_rows=len(prompts)):
            models.observe(groups)
    costs = read_costs(spec, wanted.costs or _own_costs(spec.scheduler.costs, source_dir))
    fleet = FleetModel(
        costs=(costs,) * (wanted.replicas or spec.rollout.replicas),
        max_concurrent=spec.rollout.max_concurrent_samples,
        chunk_tokens=spec.rollout.engine.max_batched_tokens or 8192,
        publish_every=spec.weights.publish_every_steps,
        checkpoint_every=spec.trainer.checkpoint.every_steps,
    )
    choosing = Choosing(longest_cycle=spec.scheduler.cycle_steps, free_target=spec.target_policy_lag is None)
    inputs = PassInputs(
        epoch=wanted.epoch,
        num_prompts=len(prompts),
        seed=spec.seed,
        prompt_tokens=prompts.tokens,
        history=np.zeros(0, np.float32),
        outlook=models.outlook() if models.has_history else None,
    )
    return AspPlanner(rules=rules, fleet=fleet, choosing=choosing).plan(inputs, models.report())


def _own_costs(costs: str | None, source_dir: Path) -> str | None:
    return None if costs is None else str(source_dir / costs)


def _rules(job: RLJob, num_prompts: int) -> Rules:
    spec = job.spec.resolved()
    resolved = ResolvedJob(
        uid="planned",
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        spec=spec,
        layout=Layout(job_dir="", data_dir="", model_dir="", source_dir=""),
        endpoints=Endpoints(scheduler="", store=""),
    )
    return rules_of(resolved, num_prompts)


def _prompts(job: RLJob, source_dir: Path, wanted: Wanted) -> Prompts:
    spec = job.spec
    if wanted.prompts is not None:
        return Prompts.of(np.full(wanted.prompts, max(1, spec.data.max_prompt_tokens // 4), np.int32))
    with tempfile.TemporaryDirectory() as folder:
        model_dir = source_dir / Path(spec.model.path).expanduser()
        data.prepare(spec, model_dir=model_dir, source_dir=source_dir, out_dir=Path(folder))
        prompts = prompts_of(data.PreparedDataset.open(Path(folder), "train"))
        rows = np.arange(len(prompts), dtype=np.int64)
        ids = [] if prompts.ids is None else [np.array(each) for each in prompts.ids(rows)]

    def kept(chosen: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int32]]:
        return [ids[int(row)] for row in chosen]

    return Prompts(prompts.tokens.copy(), prompts.source, prompts.level, kept)


def _history(path: Path, *, num_rows: int) -> Iterator[Groups]:
    """Earlier answers, oldest first.

    Raises:
        UserError: there are none at `path`.
    """
    if path.is_file():
        yield from _of_file(path, num_rows)
        return
    job_dir = find_job_dir(path)
    answers = job_dir / "plans" / "answers.log"
    data_log = answers.read_bytes() if answers.exists() else _of_journal(read_story(path))
    yield from log.batches(log.decode(data_log), num_rows=num_rows)


def _of_journal(story: JobStory) -> bytes:
    """The log that a run without one would have written."""
    size = story.job.spec.algorithm.group_size
    accepted: dict[tuple[r.TicketId, int], r.Accepted] = {}
    lines = [log.head(size)]
    for record in story.records:
        if isinstance(record, r.Accepted):
            accepted[record.ticket, record.index] = record
        elif isinstance(record, r.Decided):
            for member in record.tickets:
                keys = [(member.ticket, one.index) for one in member.samples]
                known = [accepted[key] for key in keys if key in accepted]
                answers = [(one.num_tokens, not one.finished) for one in known]
                reward = sum(one.reward for one in known) / len(known) if known else float("nan")
                lines.append(log.encode(member.row, record.step, reward=reward, answers=answers, group_size=size))
    return b"".join(lines)


def _of_file(path: Path, num_rows: int) -> Iterator[Groups]:
    """Lengths of a CSV or JSONL file with columns row (or prompt_id) and tokens (or output_tokens)."""
    found: dict[int, list[float]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = map(json.loads, file) if path.suffix == ".jsonl" else csv.DictReader(file)
            for place, line in enumerate(rows):
                row = int(line.get("row") or line.get("prompt_id") or place)
                found.setdefault(row, []).append(float(line.get("tokens") or line["output_tokens"]))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"--history: {path} has no lengths: {error!r}; write columns row and tokens") from error
    kept = [(row, lengths) for row, lengths in sorted(found.items()) if 0 <= row < num_rows]
    for start in range(0, len(kept), _BATCH):
        part = kept[start : start + _BATCH]
        yield Groups.of([row for row, _ in part], [lengths for _, lengths in part])
