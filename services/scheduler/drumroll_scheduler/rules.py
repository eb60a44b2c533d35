"""What the policy needs to know of a job, and the digest of what must not change while it runs."""

import hashlib
import json

from drumroll_planner.evaluation import NOTHING, EvalRules
from drumroll_planner.policy import Rules

from drumroll.api.quantity import quantity_bytes
from drumroll.api.spec import RLJobSpec
from drumroll.job import ResolvedJob


def rules_of(job: ResolvedJob, num_prompts: int) -> Rules:
    """The policy's rules for a job whose prepared data set has `num_prompts` rows."""
    spec = job.spec
    epochs = spec.epochs if spec.epochs is not None or spec.steps is not None else 1
    return Rules(
        num_prompts=num_prompts,
        group_size=spec.algorithm.group_size,
        prompts_per_step=spec.algorithm.prompts_per_step,
        max_policy_lag=spec.max_policy_lag,
        target_policy_lag=spec.resolved_target_lag,
        lag_policy=spec.lag_policy,
        steps=spec.steps,
        epochs=epochs,
        max_attempts=spec.scheduler.max_attempts,
        max_failed_tickets=spec.scheduler.max_failed_tickets,
        lease_term_s=spec.scheduler.lease_seconds,
        dynamic_sampling=spec.algorithm.dynamic_sampling,
        max_sampling_tries=spec.algorithm.max_sampling_tries,
        order="completion" if spec.scheduler.planner == "fifo" else "plan",
        max_stream_bytes=quantity_bytes(spec.stream.embedded.max_bytes),
        keep_versions=spec.weights.keep,
        keep_checkpoints=spec.trainer.checkpoint.keep,
    )


def eval_rules_of(job: ResolvedJob, num_prompts: int) -> EvalRules:
    """How a job with `num_prompts` held-out prompts is evaluated; 0: not at all."""
    source = job.spec.data.eval
    if source is None or not num_prompts:
        return NOTHING
    return EvalRules(
        num_prompts=num_prompts,
        samples_per_prompt=source.samples_per_prompt,
        every_steps=source.every_steps,
        max_attempts=job.spec.scheduler.max_attempts,
        lease_term_s=job.spec.scheduler.lease_seconds,
    )


def steps_total(rules: Rules, live_steps: int | None) -> int:
    """Steps that the job is to take; an upper bound where it is given in epochs and groups may be left out."""
    if live_steps is not None:
        return live_steps
    if rules.steps is not None:
        return rules.steps
    return -(-(rules.epochs or 1) * rules.num_prompts // rules.prompts_per_step)


def rules_digest(spec: RLJobSpec, data_digest: str) -> str:
    """SHA-256 of what must not change on resume without a named flag, hexadecimal."""
    fixed = {
        "data": data_digest,
        "groupSize": spec.algorithm.group_size,
        "promptsPerStep": spec.algorithm.prompts_per_step,
        "maxPolicyLag": spec.max_policy_lag,
        "seed": spec.seed,
        "planner": spec.scheduler.planner,
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def is_surplus(replica: str, live_replicas: int | None) -> bool:
    """Whether a replica such as rollout-3 is to leave, since fewer are wanted now."""
    ordinal = replica.rpartition("-")[2]
    return live_replicas is not None and ordinal.isdecimal() and int(ordinal) >= live_replicas
