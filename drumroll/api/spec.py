"""The RLJob, version v1alpha1: the one source of the CRD, its defaults and its reference page.

Every field says its unit and its default. A field that does nothing does not exist.
"""

from typing import Annotated, Literal

from pydantic import Field

from drumroll.api.base import ApiModel, Name, Path, Quantity, Text

Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Model(ApiModel):
    """The policy's starting point."""

    path: Path
    """Directory with config.json, safetensors and a tokenizer. Relative to the job file, or absolute."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Dtype of what is published and generated with; the trainer's own weights are float32."""
    chat_template: Path | None = None
    """File with a Jinja chat template; default: the model directory's own."""
    trust_remote_code: bool = False
    """Run Python code that the model directory brings."""


class Columns(ApiModel):
    """Which column of the data set holds what; a dot goes into nested columns (`reward_model.ground_truth`)."""

    prompt: Name | None = None
    """Text, or a list of chat messages."""
    answer: Name | None = None
    """The right answer, given to the reward."""
    tools: Name | None = None
    """Tool schemas for the chat template."""
    metadata: Name | None = None
    """A mapping given to the reward function as it is."""
    json_columns: Annotated[list[Name], Field(max_length=64)] = []
    """Columns whose text is parsed as JSON."""


class Task(ApiModel):
    """A generated task of reasoning-gym."""

    name: Name
    """Name of the task, such as `leg_counting`."""
    size: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Number of prompts."""
    seed: Count = 0
    """Seed of the generator."""
    config: Annotated[dict[Name, int | float | bool | Text], Field(max_length=64)] = {}
    """Parameters of the task's generator."""


class DataSource(ApiModel):
    """Where prompts come from: a path or generated tasks, exactly one of them."""

    path: Path | None = None
    """Parquet or JSONL file, or a Hugging Face data set directory, or hf://owner/name where a hub is reachable."""
    split: Name | None = None
    """Split of a Hugging Face data set; default: train (eval: test)."""
    tasks: Annotated[list[Task], Field(max_length=256)] = []
    """Generated tasks; needs `reward.type: tasks`."""
    columns: Columns = Columns()
    """Overrides the recognised layout (verl, TRL, slime, SkyRL, OpenRLHF)."""
    max_prompts: Positive | None = None
    """Use only the first rows; default: all."""


class EvalSource(DataSource):
    """Held-out prompts, answered with the newest weights every so many steps; never trained on."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Steps between evaluations."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Answers per prompt."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Sampling temperature; 0 is greedy."""


class Data(ApiModel):
    """Prompts and their limits."""

    train: DataSource
    """What is trained on."""
    eval: EvalSource | None = None
    """What is evaluated on; default: nothing."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Longest prompt, in tokens. A longer one is an error unless `overlongPrompts` says otherwise."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Longest answer, in tokens; longer ones are cut."""
    overlong_prompts: Literal["error", "skip"] = "error"
    """What to do with prompts over `maxPromptTokens`: refuse the data set, or leave them out and say how many."""


class Reward(ApiModel):
    """How answers are scored."""

    type: Literal["math", "exact", "function", "tasks"]
    """math: math-verify on the last answer given; exact: text equality; function: your own; tasks: reasoning-gym's scorer."""
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=253)] | None = None
    """`module:name` of a function with TRL's signature (sync or async), found beside the job file or on PYTHONPATH."""
    pattern: Text | None = None
    """exact only: regular expression whose last match's first group is the answer; default: the whole text, stripped."""
    require_stop: bool = False
    """Answers that were cut at the token limit get 0."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """Longest time for one group; a function that takes longer is an error of the reward, not a wrong answer."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that score, per replica."""
    memory: Quantity = "2Gi"
    """Most memory of one such process."""


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

    type: Literal["grpo"] = "grpo"
    """Group-relative policy optimisation."""
    group_size: Annotated[int, Field(ge=2, le=1024)] = 8
    """Samples per prompt."""
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


class ResourceRequirements(ApiModel):
    """Kubernetes resource requirements of one pod."""

    requests: Annotated[dict[Name, Quantity | int | float], Field(max_length=32)] = {}
    """What is reserved."""
    limits: Annotated[dict[Name, Quantity | int | float], Field(max_length=32)] = {}
    """What is allowed; `nvidia.com/gpu` also says how many GPUs a local process gets."""


class SecretKeyRef(ApiModel):
    """A key of a Secret in the job's namespace."""

    name: Name
    """Name of the Secret."""
    key: Name
    """Key in its data."""


class EnvVarSource(ApiModel):
    """Where an environment variable's value comes from."""

    secret_key_ref: SecretKeyRef
    """A key of a Secret; locally the variable of the same name in your shell."""


class EnvVar(ApiModel):
    """An environment variable of the role's processes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
    """Name of the variable."""
    value: Text | None = None
    """Its value, readable by everyone who may read the job. Use valueFrom for secrets."""
    value_from: EnvVarSource | None = None
    """Where the value is found."""


class ReplayEngine(ApiModel):
    """Answers of given or drawn lengths, paced by a step-cost model; for tests, benches and rehearsals without a model."""

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
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    """Environment variables, beside those of `spec.env`."""


class Checkpoint(ApiModel):
    """Durable states of the trainer."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps between checkpoints; the last step always has one."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Newest checkpoints that are kept."""


class Trainer(ApiModel):
    """The processes that learn."""

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
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    """Environment variables, beside those of `spec.env`."""


class Scheduler(ApiModel):
    """Who generates what, and when."""

    planner: Literal["asp", "fifo"] = "asp"
    """asp: Drumroll's planner; fifo: the data set's own order, completion order within the lag rule."""
    length_model: Literal["auto", "none"] = "auto"
    """How answer lengths are predicted."""
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
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    """Environment variables, beside those of `spec.env`."""


class EmbeddedStream(ApiModel):
    """A Valkey of the job's own."""

    max_bytes: Quantity = "1Gi"
    """Memory for samples; admission stops at 85 % of it."""


class Stream(ApiModel):
    """The sample stream and the ledger's store: embedded, or a Redis or Valkey by URL."""

    embedded: EmbeddedStream = EmbeddedStream()
    """A Valkey of the job's own; used unless `url` is set."""
    url: Annotated[str, Field(pattern=r"^rediss?://[^@]*$", max_length=2048)] | None = None
    """redis:// or rediss:// address without credentials (they go into secretRef)."""
    secret_ref: Name | None = None
    """Secret with `username` and `password` for `url`; locally a directory with files of these names."""
    archive_samples: bool = True
    """Keep the trained samples beside the checkpoints, so that `drumroll replay` can run."""


class PersistentVolumeClaim(ApiModel):
    """An existing claim."""

    claim_name: Name
    """Name of a PersistentVolumeClaim in the job's namespace."""


class Volume(ApiModel):
    """Where weights, checkpoints and the archive live."""

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A claim that all pods can mount (ReadWriteMany); locally the run directory takes its place."""


class Weights(ApiModel):
    """Numbered weights."""

    volume: Volume = Volume()
    """Where they live."""
    publish_every_steps: Annotated[int, Field(ge=1, le=1000)] = 1
    """Steps between versions; at most maxPolicyLag + 1."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 4
    """Newest versions that are kept, beside those in use."""


class RLJobSpec(ApiModel):
    """What is wanted."""

    model: Model
    """The policy's starting point."""
    data: Data
    """Prompts and their limits."""
    reward: Reward
    """How answers are scored."""
    sampling: Sampling = Sampling()
    """Sampling parameters of rollouts."""
    algorithm: Algorithm = Algorithm()
    """The update rule."""
    max_policy_lag: Annotated[int, Field(ge=0, le=1000)] = 2
    """Hard bound, in policy versions: no token older than this enters the loss. 0 is synchronous."""
    target_policy_lag: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Admission credit, in policy versions; the mean lag stays near it. Default: min(bound, max(1, bound // 2))."""
    lag_policy: Literal["wait", "drop", "mask"] = "wait"
    """What happens to a group that reaches the bound unfinished: the step waits, the group is dropped, or its old tokens are masked."""
    steps: Positive | None = None
    """Optimizer steps; exactly one of steps and epochs, default: one epoch."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Passes over the data."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the plan and of everything drawn by Drumroll itself."""
    rollout: Rollout = Rollout()
    """The replicas that generate."""
    trainer: Trainer = Trainer()
    """The processes that learn."""
    scheduler: Scheduler = Scheduler()
    """Who generates what, and when."""
    stream: Stream = Stream()
    """The sample stream and the ledger's store."""
    weights: Weights = Weights()
    """Numbered weights."""
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    """Environment variables of all roles."""
    resume_from: Path | None = None
    """Run directory or job folder whose newest checkpoint this job starts from, with a history of its own."""

    @property
    def resolved_target_lag(self) -> int:
        """`targetPolicyLag`, or its default."""
        if self.target_policy_lag is not None:
            return self.target_policy_lag
        return min(self.max_policy_lag, max(1, self.max_policy_lag // 2))


class ObjectMeta(ApiModel):
    """Name and labels, as in any Kubernetes object."""

    model_config = ApiModel.model_config | {"extra": "ignore"}

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
    """Name of the job: lower case letters, digits and hyphens; at most 40, so that the names of its pods fit."""
    namespace: Annotated[str, Field(max_length=63)] = "default"
    """Namespace."""
    uid: Annotated[str, Field(max_length=63)] | None = None
    """Set by the API server."""
    labels: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Labels."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Annotations."""


class RLJob(ApiModel):
    """An asynchronous RL post-training job."""

    model_config = ApiModel.model_config | {"extra": "forbid"}

    api_version: Literal["drumroll.dev/v1alpha1"]
    """drumroll.dev/v1alpha1"""
    kind: Literal["RLJob"]
    """RLJob"""
    metadata: ObjectMeta
    """Name and labels."""
    spec: RLJobSpec
    """What is wanted."""
