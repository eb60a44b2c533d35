"""How a job learns: sampling, the update rule, the trainer."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumroll.api.base import ApiModel, Count
from drumroll.api.patches import PodTemplatePatch
from drumroll.api.pod_rules import ENV_RULES
from drumroll.api.pods import Env, ResourceRequirements
from drumroll.api.rule import Rule
from drumroll.api.rules import ALGORITHM_RULES, TRAINER_RULES
from drumroll.api.running import Image, RestartPolicy


class Sampling(ApiModel):
    """Sampling parameters of rollouts. The model directory's own are never used."""

    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus; 1 is off."""
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Keep the k likeliest tokens; 0 is off."""
    repetition_penalty: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    """1 is off."""
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], Field(max_length=16)] = []
    """Strings that end an answer, beside the model's end tokens."""


class Algorithm(ApiModel):
    """The update rule."""

    rules: ClassVar[tuple[Rule["Algorithm"], ...]] = ALGORITHM_RULES

    type: Literal["grpo"] = "grpo"
    """Group-relative policy optimisation."""
    group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples per prompt; 2 or more."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 32
    """Groups per optimizer step."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0e-6
    """AdamW's rate after the warm-up."""
    warmup_steps: Count = 0
    """Steps over which the rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """AdamW's decoupled decay."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """AdamW's first moment."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    """AdamW's second moment."""
    max_grad_norm: Annotated[float, Field(gt=0.0, le=1.0e6)] = 1.0
    """Gradients are scaled down to this norm."""
    clip_eps: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Lower clip of the ratio: 1 - clipEps."""
    clip_eps_high: Annotated[float, Field(gt=0.0, le=10.0)] = 0.28
    """Upper clip of the ratio: 1 + clipEpsHigh."""
    kl_coef: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """Weight of the KL term against the starting model; 0 loads no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators."""
    rollout_is: Literal["token", "none"] = "token"
    """Truncated importance sampling against the behaviour log-probabilities, per token."""
    rollout_is_threshold: Annotated[float, Field(ge=1.0, le=1000.0)] = 2.0
    """Truncation of the importance weight."""
    advantage_norm: Literal["std", "none"] = "std"
    """Divide a group's advantages by its (population) standard deviation, or not."""
    dynamic_sampling: bool = False
    """Leave out groups whose rewards are all equal, and answer other prompts instead."""
    max_sampling_tries: Annotated[int, Field(ge=1, le=10_000)] = 10
    """With dynamicSampling: the job fails when promptsPerStep times this many groups in a row had equal rewards."""


class Checkpoint(ApiModel):
    """Durable states of the trainer."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps between checkpoints; the last step always has one."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Newest checkpoints that are kept."""


class Trainer(ApiModel):
    """The processes that learn."""

    rules: ClassVar[tuple[Rule["Trainer"], ...]] = (*TRAINER_RULES, *ENV_RULES)

    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of trainer pods."""
    processes_per_replica: Annotated[int, Field(ge=1, le=64)] | None = None
    """Processes per pod; default: its GPUs, or 1 on a CPU."""
    resources: ResourceRequirements = ResourceRequirements()
    """Per pod."""
    max_tokens_per_micro_batch: Annotated[int, Field(ge=1, le=100_000_000)] = 16_384
    """Token budget of one packed forward pass per process; must hold the longest sample."""
    checkpoint: Checkpoint = Checkpoint()
    """Durable states."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads per process on a CPU; default: cores divided by processes."""
    env: Env = []
    """Environment variables, beside those of `spec.env`."""
    image: Image | None = None
    """Image of its pods; default: the installation's. On a cluster only."""
    restart_policy: RestartPolicy = RestartPolicy()
    """Failures that are healed before the job fails. On a cluster only."""
    pod_template_patch: PodTemplatePatch | None = None
    """Additions to its pods; default: none. On a cluster only."""
