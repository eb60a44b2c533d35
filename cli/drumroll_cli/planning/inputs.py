"""From a job file and the command line to a plan: prompts, earlier answers, costs."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import typer
from drumroll_planner.asp import AspPlan
from drumroll_planner.lengths import Prompts
from drumroll_planner.rules import Rules
from drumroll_scheduler.plan_process import prompts_of
from drumroll_scheduler.rules import rules_of

from drumroll import data
from drumroll.api.spec import RLJob
from drumroll.job import Endpoints, Layout, ResolvedJob
from drumroll_cli.local.jobfile import choose_job
from drumroll_cli.planning.deciding import costs_of, models_of, plan_of


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
    models = models_of(spec, prompts, wanted.history)
    return plan_of(
        spec,
        prompts.tokens,
        rules=rules,
        models=models,
        costs=costs_of(spec, wanted.costs, source_dir),
        replicas=wanted.replicas or spec.rollout.replicas,
        epoch=wanted.epoch,
    )


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
