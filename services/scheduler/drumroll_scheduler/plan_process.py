"""The process that makes one pass's plan: `python -m drumroll_scheduler.plan_process JOB_FILE EPOCH`.

It reads the job, its prompts, its log of answers and the description of its fleet, writes the plan into the job's
folder and prints where. It runs at low priority beside the scheduler.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from drumroll_planner.asp import AspPlanner, Choosing, FleetModel, planfile
from drumroll_planner.costs import CostModel
from drumroll_planner.lengths import LengthModels, Prompts, log
from drumroll_planner.plan import PassInputs

from drumroll.data import PreparedDataset
from drumroll.job import ResolvedJob
from drumroll_scheduler.rules import rules_of

_LEVELS = ("level", "difficulty")
_KEPT_PASSES = 4
"""Older answers weigh next to nothing."""
_NICE = 10


def main(job_file: str, epoch: str) -> str:
    """Make the plan; where it lies."""
    job = ResolvedJob.load(job_file)
    folder = Path(job.layout.job_dir) / "plans"
    dataset = PreparedDataset.open(Path(job.layout.data_dir), "train")
    fleet = json.loads((folder / "fleet.json").read_text())
    rules = replace(rules_of(job, len(dataset)), target_policy_lag=fleet["target_policy_lag"])
    models = learn(job, dataset, (folder / "answers.log").read_bytes())
    planner = AspPlanner(rules=rules, fleet=fleet_of(job, fleet), choosing=choosing_of(job))
    inputs = PassInputs(
        epoch=int(epoch),
        num_prompts=len(dataset),
        seed=job.spec.seed,
        prompt_tokens=dataset.prompt_tokens(),
        history=np.zeros(0, np.float32),
        outlook=models.outlook(),
    )
    return str(planfile.write(planner.plan(inputs, models.report()), folder))


def learn(job: ResolvedJob, dataset: PreparedDataset, answers: bytes) -> LengthModels:
    """Length models that have seen the newest answers."""
    spec = job.spec
    limit, model = spec.data.max_response_tokens, spec.scheduler.length_model
    models = LengthModels(prompts_of(dataset), limit=limit, seed=spec.seed, model=model)
    records = log.decode(answers)[-_KEPT_PASSES * max(1, len(dataset)) :]
    for groups in log.batches(records, num_rows=len(dataset)):
        models.observe(groups)
    return models


def prompts_of(dataset: PreparedDataset) -> Prompts:
    """What the length models may know of a data set's prompts; sources and levels only where there are columns."""
    count = len(dataset)
    source, level = np.zeros(count, np.int16), np.full(count, np.nan, np.float32)
    names: dict[str, int] = {}
    columns = set(dataset.info.all_columns)
    if columns & {"data_source", *_LEVELS}:
        for row in range(count):
            inputs = dataset.reward_inputs(row)
            source[row] = names.setdefault(str(inputs.get("data_source")), len(names)) % 1024
            level[row] = next((value for name in _LEVELS if (value := _number(inputs.get(name))) is not None), np.nan)

    def ids(rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int32]]:
        return [np.array(dataset.prompt_ids(int(row)), np.int32) for row in rows]

    return Prompts(dataset.prompt_tokens(), source, level, ids)


def _number(value: Any) -> float | None:
    """A level such as 3, "3" or "Level 3"."""
    try:
        return float(str(value).rpartition(" ")[2])
    except ValueError:
        return None


def choosing_of(job: ResolvedJob) -> Choosing:
    """How this job's planner chooses."""
    return Choosing(longest_cycle=job.spec.scheduler.cycle_steps, free_target=job.planner_sets_target)


def fleet_of(job: ResolvedJob, fleet: Mapping[str, Any]) -> FleetModel:
    """The fleet that a plan is made for: measured costs from a file or from the run itself."""
    spec = job.spec
    base = CostModel(name="measured while running", step_s=0.02, sequence_s=1e-4)
    if spec.scheduler.costs is not None:
        base = CostModel.from_json((Path(job.layout.source_dir) / spec.scheduler.costs).read_text())
    elif fleet["step_s"] is not None:
        base = replace(base, step_s=fleet["step_s"][0], sequence_s=fleet["step_s"][1])
    trainer = fleet.get("trainer")
    if trainer and trainer["tokens"] > 0 and spec.scheduler.costs is None:
        per_token = trainer["train_s"] / trainer["tokens"]
        base = replace(base, train_token_s=per_token, publish_s=trainer["publish_s"])
    return FleetModel(
        costs=tuple(base.scaled(factor) for factor in fleet["factors"]),
        max_concurrent=fleet["max_concurrent"],
        chunk_tokens=spec.rollout.engine.max_batched_tokens or 8192,
        publish_every=spec.weights.publish_every_steps,
        checkpoint_every=spec.trainer.checkpoint.every_steps,
    )


if __name__ == "__main__":
    os.nice(_NICE)
    sys.stdout.write(main(*sys.argv[1:]) + "\n")
