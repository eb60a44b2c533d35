"""Contradictions between the fields of an RLJob, each stated for Python and for an API server.

A rule hangs on the model that holds all fields it talks about. The two statements agree (tests compare them on a real
server): an API server and `drumroll validate` refuse the same jobs with the same sentence.
"""

import re
from typing import TYPE_CHECKING

from drumroll.api.pod_rules import cel_gpus_are, gpus_are
from drumroll.api.quantity import parse_quantity
from drumroll.api.rule import Rule
from drumroll.api.sizes import LADDER, MIB, bytes_needed, proposed_size

if TYPE_CHECKING:
    from drumroll.api.learning import Algorithm, Trainer
    from drumroll.api.serving import Engine, Rollout, Scheduler
    from drumroll.api.sources import DataSource, Reward
    from drumroll.api.spec import RLJob, RLJobSpec
    from drumroll.api.storage import Stream

JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
STORE_URL_PATTERN = r"^rediss?://([A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?$"


DATA_SOURCE_RULES: tuple[Rule["DataSource"], ...] = (
    Rule(
        id="path-or-tasks",
        field="",
        message="prompts come from one place: write exactly one of path and tasks",
        holds=lambda source: (source.path is not None) != bool(source.tasks),
        cel="has(self.path) != (size(self.tasks) > 0)",
    ),
    Rule(
        id="split-of-path",
        field="split",
        message="generated tasks have no splits: leave split out, or write path instead of tasks",
        holds=lambda source: source.split is None or not source.tasks,
        cel="!has(self.split) || size(self.tasks) == 0",
    ),
    Rule(
        id="columns-of-path",
        field="columns",
        message="generated tasks have no columns: leave columns out, or write path instead of tasks",
        holds=lambda source: not source.tasks or source.columns == type(source.columns)(),
        cel="size(self.tasks) == 0 || (!has(self.columns.prompt) && !has(self.columns.answer) && "
        "!has(self.columns.tools) && !has(self.columns.metadata) && size(self.columns.jsonColumns) == 0)",
    ),
)


def _pattern_problem(pattern: str) -> str | None:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        return f"{error}: write a Python regular expression, such as '#### (.+)'"
    if compiled.groups == 0:
        return "the first group is the answer, and there is none: put parentheses around it, such as '#### (.+)'"
    return None


REWARD_RULES: tuple[Rule["Reward"], ...] = (
    Rule(
        id="function-of-type",
        field="function",
        message="reward.function and type: function go together: write both, or neither",
        holds=lambda reward: (reward.function is not None) == (reward.type == "function"),
        cel="has(self.__function__) == (self.type == 'function')",
    ),
    Rule(
        id="pattern-of-exact",
        field="pattern",
        message="reward.pattern acts only with type: exact: leave it out, or write type: exact",
        holds=lambda reward: reward.pattern is None or reward.type == "exact",
        cel="!has(self.pattern) || self.type == 'exact'",
    ),
    Rule(
        id="pattern-compiles",
        field="pattern",
        message="a Python regular expression with a group",
        holds=lambda reward: reward.pattern is None or _pattern_problem(reward.pattern) is None,
        cel=None,
        explain=lambda reward: _pattern_problem(reward.pattern or "") or "",
    ),
    Rule(
        id="reward-memory",
        field="memory",
        message="a Python process does not start in less: write 64Mi or more",
        holds=lambda reward: parse_quantity(reward.memory) >= 64 * MIB,
        cel="quantity(string(self.memory)).compareTo(quantity('64Mi')) >= 0",
    ),
)

ALGORITHM_RULES: tuple[Rule["Algorithm"], ...] = (
    Rule(
        id="group-compares",
        field="groupSize",
        message="groupSize 1 has no group to compare with: write 2 or more",
        holds=lambda algorithm: algorithm.group_size >= 2,
        cel="self.groupSize >= 2",
    ),
)

TRAINER_RULES: tuple[Rule["Trainer"], ...] = (
    Rule(
        id="process-per-gpu",
        field="processesPerReplica",
        message="each process has one GPU: write the number under resources.limits nvidia.com/gpu, or leave it out",
        holds=lambda trainer: (
            trainer.processes_per_replica is None or gpus_are(trainer.resources, trainer.processes_per_replica)
        ),
        cel=f"!has(self.processesPerReplica) || {cel_gpus_are('self.processesPerReplica')}",
    ),
)

ENGINE_RULES: tuple[Rule["Engine"], ...] = (
    Rule(
        id="kv-cache-memory",
        field="kvCacheMemory",
        message="no sequence fits into less: write 1Mi or more",
        holds=lambda engine: parse_quantity(engine.kv_cache_memory) >= MIB,
        cel="quantity(string(self.kvCacheMemory)).compareTo(quantity('1Mi')) >= 0",
    ),
)

ROLLOUT_RULES: tuple[Rule["Rollout"], ...] = (
    Rule(
        id="at-least-min-replicas",
        field="replicas",
        message="replicas is below minReplicas: write a number between minReplicas and maxReplicas",
        holds=lambda rollout: rollout.min_replicas is None or rollout.min_replicas <= rollout.replicas,
        cel="!has(self.minReplicas) || self.minReplicas <= self.replicas",
    ),
    Rule(
        id="at-most-max-replicas",
        field="replicas",
        message="replicas is above maxReplicas: write a number between minReplicas and maxReplicas",
        holds=lambda rollout: rollout.max_replicas is None or rollout.replicas <= rollout.max_replicas,
        cel="!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
    ),
    Rule(
        id="gpus-of-tensor-parallel",
        field="tensorParallelSize",
        message="all GPUs of a replica hold its model: write the number under resources.limits nvidia.com/gpu",
        holds=lambda rollout: gpus_are(rollout.resources, rollout.tensor_parallel_size),
        cel=cel_gpus_are("self.tensorParallelSize"),
    ),
    Rule(
        id="batched-tokens",
        field="engine.maxBatchedTokens",
        message="a step of the engine holds a token of each running sequence: write maxConcurrentSamples or more",
        holds=lambda rollout: (
            rollout.engine.max_batched_tokens is None
            or rollout.engine.max_batched_tokens >= rollout.max_concurrent_samples
        ),
        cel="!has(self.engine.maxBatchedTokens) || self.engine.maxBatchedTokens >= self.maxConcurrentSamples",
    ),
)

SCHEDULER_RULES: tuple[Rule["Scheduler"], ...] = (
    Rule(
        id="lease-outlives-heartbeat",
        field="leaseSeconds",
        message="leases are renewed by heartbeats: write at least twice heartbeatSeconds",
        holds=lambda scheduler: scheduler.lease_seconds >= 2 * scheduler.heartbeat_seconds,
        cel="self.leaseSeconds >= 2.0 * self.heartbeatSeconds",
    ),
)

STREAM_RULES: tuple[Rule["Stream"], ...] = (
    Rule(
        id="store-url",
        field="url",
        message="not the address of a Redis or Valkey: write redis://host:port or rediss://host:port, without "
        "credentials (they go into secretRef)",
        holds=lambda stream: stream.url is None or re.fullmatch(STORE_URL_PATTERN, stream.url) is not None,
        cel=f"!has(self.url) || self.url.matches(r'{STORE_URL_PATTERN}')",
    ),
    Rule(
        id="url-or-embedded",
        field="embedded",
        message="a store by url is not embedded: leave embedded out, or leave url out",
        holds=lambda stream: stream.url is None or stream.embedded == type(stream.embedded)(),
        cel="!has(self.url) || (string(self.embedded.maxBytes) == '1Gi' && !has(self.embedded.image) && "
        "size(self.embedded.resources.requests) == 0 && size(self.embedded.resources.limits) == 0 && "
        "!has(self.embedded.podTemplatePatch))",
    ),
    Rule(
        id="secret-of-url",
        field="secretRef",
        message="an embedded store makes its own users: leave secretRef out, or write url",
        holds=lambda stream: stream.secret_ref is None or stream.url is not None,
        cel="!has(self.secretRef) || has(self.url)",
    ),
    Rule(
        id="ca-of-url",
        field="caSecretRef",
        message="authorities check the certificate of an encrypted connection: write url: rediss://host:port, or leave "
        "caSecretRef out",
        holds=lambda stream: stream.ca_secret_ref is None or (stream.url or "").startswith("rediss://"),
        cel="!has(self.caSecretRef) || (has(self.url) && self.url.startsWith('rediss://'))",
    ),
)


def _store_holds(spec: "RLJobSpec") -> bool:
    return spec.stream.url is not None or parse_quantity(spec.stream.embedded.max_bytes) >= bytes_needed(spec)


def _store_explained(spec: "RLJobSpec") -> str:
    return (
        "the store must hold two steps beyond targetPolicyLag with every sample at its longest: write "
        f"{proposed_size(bytes_needed(spec))} or more, or fewer tokens, prompts or samples"
    )


_CEL_TARGET = (
    "(has(self.targetPolicyLag) ? self.targetPolicyLag : self.maxPolicyLag < 1 ? 0 : "
    "self.maxPolicyLag < 4 ? 1 : self.maxPolicyLag / 2)"
)
_CEL_BYTES_NEEDED = (
    f"(({_CEL_TARGET} + 2) * self.algorithm.promptsPerStep * self.algorithm.groupSize * "
    "((self.data.maxPromptTokens + self.data.maxResponseTokens) * 10 + 4096) / 17 * 20)"
)

SPEC_RULES: tuple[Rule["RLJobSpec"], ...] = (
    Rule(
        id="steps-or-epochs",
        field="epochs",
        message="a job ends by steps or by epochs: write only one of them",
        holds=lambda spec: spec.steps is None or spec.epochs is None,
        cel="!(has(self.steps) && has(self.epochs))",
    ),
    Rule(
        id="target-within-bound",
        field="targetPolicyLag",
        message="the target lies above the bound: write at most maxPolicyLag",
        holds=lambda spec: spec.target_policy_lag is None or spec.target_policy_lag <= spec.max_policy_lag,
        cel="!has(self.targetPolicyLag) || self.targetPolicyLag <= self.maxPolicyLag",
    ),
    Rule(
        id="publish-within-bound",
        field="weights.publishEverySteps",
        message="no token would be young enough: write at most maxPolicyLag + 1",
        holds=lambda spec: spec.weights.publish_every_steps <= spec.max_policy_lag + 1,
        cel="self.weights.publishEverySteps <= self.maxPolicyLag + 1",
    ),
    Rule(
        id="train-tasks-of-reward",
        field="data.train",
        message="data.train.tasks and reward.type: tasks go together: write both, or neither",
        holds=lambda spec: bool(spec.data.train.tasks) == (spec.reward.type == "tasks"),
        cel="(size(self.data.train.tasks) > 0) == (self.reward.type == 'tasks')",
    ),
    Rule(
        id="eval-tasks-of-reward",
        field="data.eval",
        message="data.eval.tasks and reward.type: tasks go together: write both, or neither",
        holds=lambda spec: spec.data.eval is None or bool(spec.data.eval.tasks) == (spec.reward.type == "tasks"),
        cel="!has(self.data.eval) || (size(self.data.eval.tasks) > 0) == (self.reward.type == 'tasks')",
    ),
    Rule(
        id="micro-batch-holds-sample",
        field="trainer.maxTokensPerMicroBatch",
        message="the longest sample does not fit: write data.maxPromptTokens + data.maxResponseTokens or more",
        holds=lambda spec: (
            spec.trainer.max_tokens_per_micro_batch >= spec.data.max_prompt_tokens + spec.data.max_response_tokens
        ),
        cel="self.trainer.maxTokensPerMicroBatch >= self.data.maxPromptTokens + self.data.maxResponseTokens",
    ),
    Rule(
        id="store-holds-steps",
        field="stream.embedded.maxBytes",
        message="the store must hold two steps beyond targetPolicyLag with every sample at its longest: write more",
        holds=_store_holds,
        cel=f"has(self.stream.url) || "
        f"quantity(string(self.stream.embedded.maxBytes)).asApproximateFloat() >= double({_CEL_BYTES_NEEDED})",
        explain=_store_explained,
        cel_message="'the store must hold two steps beyond targetPolicyLag with every sample at its longest: write ' + "
        f"{list(LADDER)}.filter(s, quantity(s).asApproximateFloat() >= double({_CEL_BYTES_NEEDED}))[0] + "
        "' or more, or fewer tokens, prompts or samples'",
    ),
)

JOB_RULES: tuple[Rule["RLJob"], ...] = (
    Rule(
        id="job-name",
        field="metadata.name",
        message="the names of pods and Services are made from it: write lower case letters, digits and hyphens, a "
        "letter first, at most 40 characters",
        holds=lambda job: (
            len(job.metadata.name) <= 40 and re.fullmatch(JOB_NAME_PATTERN, job.metadata.name) is not None
        ),
        cel=f"size(self.metadata.name) <= 40 && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
    ),
)
