"""The scheduler's planner as `drumroll plan` and `drumroll simulate` ask it: costs, length models, a pass's plan."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from drumroll_planner.asp import AspPlan, AspPlanner, Choosing, FleetModel
from drumroll_planner.cost_presets import DEFAULT, preset, preset_names
from drumroll_planner.costs import CostModel
from drumroll_planner.lengths import LengthModels, Prompts
from drumroll_planner.plan import PassInputs
from drumroll_planner.rules import Rules

from drumroll.api.spec import RLJobSpec
from drumroll.errors import UserError
from drumroll_cli.planning.earlier import earlier_answers


def read_costs(spec: RLJobSpec, given: str | None) -> CostModel:
    """Costs of a file or preset; without either, of the job's replay engine, or the default preset.

    Raises:
        UserError: there is neither such a file nor such a preset, or the file is not one of costs.
    """
    if given is None and spec.rollout.engine.type == "replay":
        replay = spec.rollout.engine.replay
        return CostModel(
            name="replay engine",
            source="the job file",
            step_s=max(0.0, replay.step_seconds - replay.step_seconds_per_sequence),
            sequence_s=replay.step_seconds_per_sequence,
            publish_pause_s=replay.load_seconds,
            train_step_s=0.1,
        )
    name = given or DEFAULT
    if name in preset_names():
        return preset(name)
    try:
        return CostModel.from_json(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(preset_names())
        raise UserError(f"--costs: {name} is no file that can be read ({error}), and no preset ({known})") from error


def costs_of(spec: RLJobSpec, given: str | None, source_dir: Path) -> CostModel:
    """What the command line names, or else the job (`scheduler.costs`, beside the job file).

    Raises:
        UserError: it is not there.
    """
    own = spec.scheduler.costs
    return read_costs(spec, given or (None if own is None else str(source_dir / own)))


def models_of(spec: RLJobSpec, prompts: Prompts, history: Path | None) -> LengthModels:
    """The job's length models, after the answers of `history`.

    Raises:
        UserError: there are none there.
    """
    limit = spec.data.max_response_tokens
    models = LengthModels(prompts, limit=limit, seed=spec.seed, model=spec.scheduler.length_model)
    if history is not None:
        for groups in earlier_answers(history, num_rows=len(prompts)):
            models.observe(groups)
    return models


def plan_of(
    spec: RLJobSpec,
    prompt_tokens: npt.NDArray[np.int32],
    *,
    rules: Rules,
    models: LengthModels,
    costs: CostModel,
    replicas: int,
    epoch: int,
) -> AspPlan:
    """What the scheduler would decide for a pass; where nothing is known, a seeded shuffle."""
    fleet = FleetModel(
        costs=(costs,) * replicas,
        max_concurrent=spec.rollout.max_concurrent_samples,
        chunk_tokens=spec.rollout.engine.max_batched_tokens or 8192,
        publish_every=spec.weights.publish_every_steps,
        checkpoint_every=spec.trainer.checkpoint.every_steps,
    )
    choosing = Choosing(longest_cycle=spec.scheduler.cycle_steps, free_target=spec.target_policy_lag is None)
    inputs = PassInputs(
        epoch=epoch,
        num_prompts=len(prompt_tokens),
        seed=spec.seed,
        prompt_tokens=prompt_tokens,
        history=np.zeros(0, np.float32),
        outlook=models.outlook() if models.has_history else None,
    )
    return AspPlanner(rules=rules, fleet=fleet, choosing=choosing).plan(inputs, models.report())
