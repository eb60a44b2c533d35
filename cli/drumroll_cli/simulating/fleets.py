"""From a job file and the command line to what is simulated: rules, plan, lengths, costs."""

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from drumroll_planner.asp import AspPlan
from drumroll_planner.costs import CostModel
from drumroll_planner.lengths import Prompts
from drumroll_planner.plan import PassInputs, PassPlan
from drumroll_planner.planners import build_planner
from drumroll_planner.rules import Rules
from drumroll_planner.sim import SimJob
from drumroll_rollout.replay_lengths import ReplayLengths, read_lengths
from drumroll_scheduler.rules import rules_of

from drumroll import data
from drumroll.api.spec import RLJob, RLJobSpec
from drumroll.errors import UserError
from drumroll.job import Endpoints, Layout, ResolvedJob
from drumroll_cli.planning.deciding import costs_of, models_of, plan_of

_MANY = 1_000_000
"""Larger fleets than this are a slip."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    planner: str | None
    costs: str | None
    """A file of `drumroll profile`, or the name of a preset."""
    lengths: Path | None
    prompts: int | None
    steps: int
    """Steps to simulate at most."""
    kv_tokens: int | None
    seed: int
    history: Path | None = None
    """Earlier answers for the planner to learn from."""


def parse_sizes(text: str) -> list[int]:
    """`4`, `1,2,8` or `1..64` (powers of two from 1 to 64, and both ends).

    Raises:
        UserError: it is none of these.
    """
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text.strip()):
        low, high = int(match[1]), int(match[2])
        powers = [2**power for power in range(20) if low <= 2**power <= high]
        sizes = sorted({low, *powers, high}) if 1 <= low <= high <= _MANY else []
    elif re.fullmatch(r"\d+(,\d+)*", text.strip()):
        sizes = sorted({int(part) for part in text.split(",")})
    else:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise UserError(f"--replicas: {text!r} names no numbers of replicas; write 4, or 1,2,8, or 1..64")
    return sizes


def build(job: RLJob, source_dir: Path, wanted: Wanted) -> SimJob:
    """The job as it is simulated, with its own number of replicas.

    Raises:
        UserError: data, lengths, costs or planner are not there.
    """
    spec = job.spec
    prompts = _prompt_tokens(spec, source_dir, wanted)
    rules = _rules(job, len(prompts), wanted)
    group = rules.group_size
    lengths = _lengths(spec, wanted, len(prompts), group)
    costs = costs_of(spec, wanted.costs, source_dir)
    plan = _plan(spec, wanted, prompts, rules, costs)
    if isinstance(plan, AspPlan):
        rules = replace(rules, target_policy_lag=plan.target_lag)
    rows = np.array([plan.row(ordinal) for ordinal in range(len(plan))], dtype=np.int64)
    return SimJob(
        rules=rules,
        plan=plan,
        lengths=lengths[rows],
        prompt_tokens=prompts[rows],
        costs=costs,
        num_replicas=spec.rollout.replicas,
        max_concurrent=spec.rollout.max_concurrent_samples,
        chunk_tokens=spec.rollout.engine.max_batched_tokens or 8192,
        kv_tokens=wanted.kv_tokens,
        share_prefix=spec.rollout.engine.prefix_caching,
        publish_every=spec.weights.publish_every_steps,
        checkpoint_every=spec.trainer.checkpoint.every_steps,
    )


def _plan(spec: RLJobSpec, wanted: Wanted, prompts: npt.NDArray[np.int32], rules: Rules, costs: CostModel) -> PassPlan:
    """The scheduler's own plan: of the first pass, or, after earlier answers, of the second."""
    name = wanted.planner or spec.scheduler.planner
    if name != "asp":
        history = np.zeros(0, np.float32)
        inputs = PassInputs(0, len(prompts), spec.seed, prompt_tokens=prompts, history=history)
        return build_planner(name).plan(inputs)
    return plan_of(
        spec,
        prompts,
        rules=rules,
        models=models_of(spec, Prompts.of(prompts), wanted.history),
        costs=costs,
        replicas=spec.rollout.replicas,
        epoch=0 if wanted.history is None else 1,
    )


def _rules(job: RLJob, num_prompts: int, wanted: Wanted) -> Rules:
    spec = job.spec.resolved()
    in_job = spec.steps or -(-(spec.epochs or 1) * num_prompts // spec.algorithm.prompts_per_step)
    spec = spec.model_copy(update={"steps": min(in_job, wanted.steps), "epochs": None})
    nowhere = Layout(job_dir="", data_dir="", model_dir="", source_dir="")
    resolved = ResolvedJob(
        uid="simulated",
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        spec=spec,
        layout=nowhere,
        endpoints=Endpoints(scheduler="", store=""),
    )
    return rules_of(resolved, num_prompts)


def _prompt_tokens(spec: RLJobSpec, source_dir: Path, wanted: Wanted) -> npt.NDArray[np.int32]:
    """Of the job's own data set, or of as many prompts as were named, drawn below the limit."""
    if wanted.prompts is None:
        with tempfile.TemporaryDirectory() as folder:
            model_dir = source_dir / Path(spec.model.path).expanduser()
            data.prepare(spec, model_dir=model_dir, source_dir=source_dir, out_dir=Path(folder))
            return np.array(data.PreparedDataset.open(Path(folder), "train").prompt_tokens(), dtype=np.int32)
    generator = np.random.default_rng([wanted.seed, 1])
    logs = generator.normal(np.log(spec.data.max_prompt_tokens / 4), 0.5, wanted.prompts)
    return np.clip(np.exp(logs), 1, spec.data.max_prompt_tokens).astype(np.int32)


def _lengths(spec: RLJobSpec, wanted: Wanted, num_prompts: int, group: int) -> npt.NDArray[np.int32]:
    """True answer lengths by row: of a file, of the job's replay engine, or drawn with a long tail."""
    limit = spec.data.max_response_tokens
    replay = spec.rollout.engine.replay
    known: ReplayLengths | None = None
    if wanted.lengths is not None:
        known = read_lengths(wanted.lengths, seed=wanted.seed)
    elif spec.rollout.engine.type == "replay" and replay.lengths is None:
        known = ReplayLengths(spec.seed, replay.median_tokens, replay.sigma)
    if known is None:
        return drawn_lengths(num_prompts, group, limit=limit, seed=wanted.seed)
    rows = [[min(limit, known(row, index)) for index in range(group)] for row in range(num_prompts)]
    return np.array(rows, dtype=np.int32)


def drawn_lengths(num_prompts: int, group: int, *, limit: int, seed: int) -> npt.NDArray[np.int32]:
    """Log-normal answer lengths [prompts, group], four fifths of the variance between prompts; cut at the limit.

    The median is an eighth of the limit and sigma 0.9, so that the longest tenth holds a third of all tokens.
    """
    generator = np.random.default_rng([seed, 2])
    sigma, between = 0.9, 0.8
    prompts = generator.normal(0.0, sigma * between**0.5, (num_prompts, 1))
    samples = generator.normal(0.0, sigma * (1.0 - between) ** 0.5, (num_prompts, group))
    return np.clip(limit / 8 * np.exp(prompts + samples), 1, limit).astype(np.int32)
