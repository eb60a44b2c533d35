"""How a job generates: the replicas, their engine, and the scheduler that feeds them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumroll.api.base import ApiModel, Count, Fraction, Path, Positive, Quantity
from drumroll.api.patches import PodTemplatePatch
from drumroll.api.pod_rules import ENV_RULES
from drumroll.api.pods import Env, ResourceRequirements
from drumroll.api.rule import Rule
from drumroll.api.rules import ENGINE_RULES, ROLLOUT_RULES, SCHEDULER_RULES
from drumroll.api.running import Image, RestartPolicy


class ReplayEngine(ApiModel):
    """Answers of given or drawn lengths, paced by a step-cost model: for tests, benches, rehearsals without a model."""

    lengths: Path | None = None
    """CSV or JSONL with a column `tokens` (and optionally `row`); default: log-normal lengths."""
    median_tokens: Annotated[float, Field(gt=0.0, le=1.0e6)] = 64.0
    """Median of the log-normal lengths, in tokens."""
    sigma: Annotated[float, Field(ge=0.0, le=5.0)] = 0.8
    """Spread of the log of the lengths."""
    step_seconds: Annotated[float, Field(ge=0.0, le=60.0)] = 0.02
    """Time of a decode step with one running sequence, in seconds."""
    step_seconds_per_sequence: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0005
    """What each further running sequence adds, in seconds."""
    load_seconds: Annotated[float, Field(ge=0.0, le=3600.0)] = 0.05
    """Time of a weight load, in seconds."""


class Engine(ApiModel):
    """The inference engine of a replica."""

    rules: ClassVar[tuple[Rule["Engine"], ...]] = ENGINE_RULES

    type: Literal["vllm", "replay"] = "vllm"
    """vLLM in process, or replayed lengths."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Share of a GPU's memory that vLLM takes."""
    kv_cache_memory: Quantity = "1Gi"
    """KV cache of a replica that runs on a CPU."""
    max_batched_tokens: Positive | None = None
    """vLLM's max_num_batched_tokens; default: vLLM's own."""
    enforce_eager: bool = False
    """Do not capture CUDA graphs."""
    prefix_caching: bool = True
    """Share the KV of common prefixes; never across weight versions."""
    replay: ReplayEngine = ReplayEngine()
    """Settings of `type: replay`."""


class Rollout(ApiModel):
    """The replicas that generate."""

    rules: ClassVar[tuple[Rule["Rollout"], ...]] = (*ROLLOUT_RULES, *ENV_RULES)

    replicas: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of replicas."""
    min_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Fewest replicas that may be asked for while the job runs; default: 1."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Most replicas that may be asked for while the job runs; default: no limit."""
    max_concurrent_samples: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Sequences that a replica runs at a time."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs that one replica's model is split over."""
    engine: Engine = Engine()
    """The inference engine."""
    resources: ResourceRequirements = ResourceRequirements()
    """Per replica."""
    grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """What a replica gets to finish or hand back its samples before it is killed, in seconds."""
    partial_every_tokens: Count = 0
    """Hand over the tokens so far every so many tokens, so that a killed replica loses less; 0: only when draining."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """OpenMP threads per replica on a CPU; default: cores divided by processes."""
    env: Env = []
    """Environment variables, beside those of `spec.env`."""
    image: Image | None = None
    """Image of the replicas; default: the installation's. On a cluster only."""
    restart_policy: RestartPolicy = RestartPolicy()
    """Failures that are healed before the job fails. On a cluster only."""
    pod_template_patch: PodTemplatePatch | None = None
    """Additions to their pods; default: none. On a cluster only."""


class Scheduler(ApiModel):
    """Who generates what, and when."""

    rules: ClassVar[tuple[Rule["Scheduler"], ...]] = (*SCHEDULER_RULES, *ENV_RULES)

    planner: Literal["asp", "fifo"] = "asp"
    """asp: Drumroll's planner; fifo: the data set's own order, completion order within the lag rule."""
    length_model: Literal["auto", "none", "history", "features", "ranker"] = "auto"
    """How answer lengths are predicted, where the planner is asp. auto: the cheapest of the others that is not beaten
    on answers that it has not seen."""
    cycle_steps: Annotated[int, Field(ge=1, le=64)] = 16
    """Steps after which the trained prompts are representative again: how far the planner may move long prompts
    together. 1: never reorder by length."""
    costs: Path | None = None
    """File of `drumroll profile` that plans are simulated with; default: measured while the job runs."""
    lease_seconds: Annotated[float, Field(ge=0.1, le=86_400.0)] = 60.0
    """A sample without any progress for this long is leased again."""
    heartbeat_seconds: Annotated[float, Field(ge=0.01, le=60.0)] = 1.0
    """Time between the heartbeats of a replica."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Tries per sample before its ticket ends as failed."""
    max_failed_tickets: Fraction = 0.01
    """Share of admitted tickets that may fail before the job does; one ticket may always fail."""
    resources: ResourceRequirements = ResourceRequirements()
    """Of the scheduler's pod."""
    env: Env = []
    """Environment variables, beside those of `spec.env`."""
    image: Image | None = None
    """Image of its pod; default: the installation's. On a cluster only."""
    restart_policy: RestartPolicy = RestartPolicy()
    """Failures that are healed before the job fails. On a cluster only."""
    pod_template_patch: PodTemplatePatch | None = None
    """Additions to its pod; default: none. On a cluster only."""
