"""The reference page of the RLJob, made from its models."""

import json
from collections.abc import Iterator
from typing import Any

from drumroll.api.crd import custom_resource_definition
from drumroll.api.lifetime import is_live
from drumroll.api.spec import RLJob, RLJobSpec
from drumroll.api.structural import Schema
from drumroll.api.tree import Node, children, placed_rules

EXAMPLE = """\
apiVersion: drumroll.dev/v1alpha1
kind: RLJob
metadata: {name: gsm8k-grpo}
spec:
  model: {path: /models/Qwen2.5-1.5B-Instruct, dtype: bfloat16}
  data:
    train: {path: /data/gsm8k/train.parquet}
    eval: {path: /data/gsm8k/test.parquet, everySteps: 20}
    maxPromptTokens: 512
    maxResponseTokens: 2048
  reward: {type: math}
  algorithm: {type: grpo, groupSize: 8, promptsPerStep: 64, learningRate: 1.0e-6, clipEps: 0.2, clipEpsHigh: 0.28}
  maxPolicyLag: 4
  targetPolicyLag: 2
  lagPolicy: wait
  steps: 500
  rollout: {replicas: 4, minReplicas: 2, maxReplicas: 16, resources: {limits: {nvidia.com/gpu: 1}}}
  trainer: {replicas: 1, resources: {limits: {nvidia.com/gpu: 4}}, checkpoint: {everySteps: 10, keep: 3}}
  scheduler: {planner: asp, lengthModel: auto}
  stream: {embedded: {maxBytes: 8Gi}}
  weights: {volume: {persistentVolumeClaim: {claimName: weights}}, publishEverySteps: 1, keep: 4}
"""

_HEAD = """\
<!-- Made from the models in drumroll/api by `make crd`; changes here are lost. -->
# RLJob

{doc} API group `drumroll.dev`, version `v1alpha1`, kind `RLJob`, short name `rlj`.

`drumroll validate FILE...` checks job files without a cluster and says the same as the API server. Fields that are not
listed here are refused. Fields marked with 🔓 may change while the job lives, and it acts on
them; a change of any other is refused. Fields that say so act on a cluster only; a local run leaves them out.

## A complete example

```yaml
{example}```

Only `model`, `data.train` and `reward` are required.
"""

_UNITS = {
    "Tokens": "tokens",
    "TokensPerMicroBatch": "tokens",
    "Seconds": "seconds",
    "SecondsPerSequence": "seconds",
    "Steps": "steps",
    "Bytes": "bytes",
    "Memory": "bytes",
    "Lag": "policy versions",
    "Replicas": "replicas",
    "Samples": "samples",
}
_UNIT_OF = {
    "steps": "steps",
    "epochs": "passes",
    "sizeLimit": "bytes",
    "maxRestarts": "failures",
    "memory": "bytes",
    "replicas": "pods",
    "minReplicas": "pods",
    "maxReplicas": "pods",
    "groupSize": "samples",
    "promptsPerStep": "prompts",
    "maxPrompts": "prompts",
    "size": "prompts",
    "samplesPerPrompt": "samples",
    "maxAttempts": "tries",
    "maxSamplingTries": "steps' worth of groups",
    "processesPerReplica": "processes",
    "workers": "processes",
    "threads": "threads",
    "tensorParallelSize": "GPUs",
    "maxFailedTickets": "share",
    "gpuMemoryUtilization": "share",
}


def reference_page() -> str:
    """The page, in Markdown."""
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    parts = [_HEAD.format(doc=RLJob.__doc__, example=EXAMPLE)]
    parts += _sections(children(RLJobSpec, "spec"), schema, "spec", RLJobSpec.__doc__ or "", 2)
    parts.append(_rules())
    return "\n".join(parts)


def unit_of(node: Node) -> str:
    """The unit of a field's value; empty where it has none."""
    if node.name in _UNIT_OF:
        return _UNIT_OF[node.name]
    return next((unit for ending, unit in _UNITS.items() if node.name.endswith(ending)), "")


def _sections(nodes: list[Node], schema: Schema, path: str, doc: str, level: int) -> Iterator[str]:
    required = schema.get("required", [])
    rows = [
        "| field | type | default | unit | bounds | meaning |",
        "|---|---|---|---|---|---|",
        *(_row(node, schema["properties"][node.name], node.name in required) for node in nodes),
    ]
    yield f"{'#' * min(level, 5)} `{path}`\n\n{doc}\n\n" + "\n".join(rows) + "\n"
    for node in nodes:
        if node.model is not None:
            inner = schema["properties"][node.name]
            inner, place = (inner["items"], f"{node.path}[]") if node.is_list else (inner, node.path)
            yield from _sections(children(node.model, place), inner, place, _doc(node.model.__doc__), level + 1)


def _row(node: Node, schema: Schema, is_required: bool) -> str:
    lock = " 🔓" if is_live(node.path) else ""
    default = "**required**" if is_required else _default(node)
    cells = [f"`{node.name}`{lock}", _type(schema), default, unit_of(node), _bounds(schema), node.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(node: Node) -> str:
    if not node.has_default:
        return ""
    return "see below" if node.model is not None and not node.is_list else f"`{json.dumps(node.default)}`"


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = schema.get("type", "any scalar")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map to {_type(schema['additionalProperties'])}"
    return str(kind)


def _bounds(schema: Schema) -> str:
    parts = []
    if not schema.get("x-kubernetes-int-or-string"):
        if (least := schema.get("minimum")) is not None:
            parts.append(f"{'>' if schema.get('exclusiveMinimum') else '≥'} {_number(least)}")
        if (most := schema.get("maximum")) is not None:
            parts.append(f"{'<' if schema.get('exclusiveMaximum') else '≤'} {_number(most)}")
    for key, unit in (("maxLength", "characters"), ("maxItems", "items"), ("maxProperties", "entries")):
        if key in schema and not schema.get("x-kubernetes-int-or-string"):
            parts.append(f"at most {schema[key]} {unit}")
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{int(value):,}".replace(",", " ") if value == int(value) else str(value)


def _rules() -> str:
    seen: dict[str, tuple[list[str], Any]] = {}
    for path, rule in placed_rules():
        seen.setdefault(rule.id, ([], rule))[0].append(f"{path}.{rule.field}".strip("."))
    rows = [
        f"| {', '.join(f'`{place}`' for place in dict.fromkeys(places))} | {rule.message} |"
        for places, rule in seen.values()
    ]
    return "\n".join(["## What is refused", "", "| where | why, and what to write |", "|---|---|", *rows, ""])


def _doc(text: str | None) -> str:
    return " ".join((text or "").split())
