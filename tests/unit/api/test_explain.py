"""Sentences about single fields."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from drumroll.api.crd import custom_resource_definition
from drumroll.api.loading import parse_jobs
from drumroll.api.names import advise
from drumroll.api.tree import Node, spec_nodes

SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def schema_of(node: Node) -> dict[str, Any]:
    schema = SCHEMA
    for part in node.path.split("."):
        schema = schema["properties"][part.removesuffix("[]")]
        schema = schema["items"] if part.endswith("[]") else schema
    return schema


def beyond_bounds() -> list[tuple[str, Any]]:
    cases: list[tuple[str, Any]] = []
    for node in spec_nodes().values():
        schema = schema_of(node)
        if "[]" in node.path or schema.get("x-kubernetes-int-or-string"):
            continue
        if "minimum" in schema:
            cases.append((node.path, schema["minimum"] - 1))
            cases.append((node.path, schema["maximum"] + 1))
        if "maxLength" in schema:
            cases.append((node.path, "x" * (schema["maxLength"] + 1)))
        if "enum" in schema:
            cases.append((node.path, "something-else"))
        cases.append((node.path, {"a": "mapping"} if schema["type"] != "object" else 5))
    return cases


@pytest.mark.parametrize(("path", "value"), beyond_bounds())
def test_every_field_refuses_what_is_beyond_its_bounds(path: str, value: Any, job_text: Callable[..., str]) -> None:
    problems = parse_jobs(job_text({path: value}), "job.yaml").problems
    told = [problem for problem in problems if problem.field.startswith(path)]
    assert told, problems
    assert all(
        "write" in problem.message or "expects" in problem.message or "no such field" in problem.message
        for problem in told
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec.model": "m"}, 'spec.model is "m": expects a mapping: write model: {path: m}'),
        ({"spec.rollout": 4}, "spec.rollout is 4: expects a mapping: write rollout: {replicas: 4}"),
        ({"spec.stream": "redis://u:p@h"}, "spec.stream: expects a mapping: write stream: {url: …}"),
        ({"spec.steps": "500"}, 'spec.steps is "500": expects a whole number: write it without quotes, 500'),
        ({"spec.steps": 2.5}, "spec.steps is 2.5: expects a whole number, such as 500"),
        ({"spec.seed": True}, "spec.seed is true: expects a whole number, such as 0"),
        ({"spec.algorithm.clipEps": "wide"}, 'spec.algorithm.clipEps is "wide": expects a number, such as 0.2'),
        ({"spec.algorithm.clipEps": float("inf")}, "spec.algorithm.clipEps is Infinity: write a finite number"),
        ({"spec.reward.requireStop": "yes"}, 'spec.reward.requireStop is "yes": expects true or false, such as false'),
        ({"spec.reward.requireStop": "true"}, 'spec.reward.requireStop is "true": expects true or false: write it'),
        ({"spec.model.path": 5}, "spec.model.path is 5: expects a text: put it in quotes"),
        ({"spec.model.path": ""}, 'spec.model.path is "": too short: write at least 1 character'),
        ({"spec.sampling.stop": "end"}, 'spec.sampling.stop is "end": expects a list, such as []'),
        ({"spec.sampling.stop": [5]}, "spec.sampling.stop[0] is 5: expects a text: put it in quotes"),
        ({"spec.sampling.stop": ["a"] * 17}, "too many: write at most 16"),
        ({"spec.rollout.resources.limits": {"": 1}}, "too short: write at least 1 character"),
        ({"spec.rollout.resources.limits": "all"}, 'spec.rollout.resources.limits is "all": expects a mapping'),
        ({"spec.env": {"A": "b"}}, "spec.env: expects a list: write env: [{name: NAME, value: text}]"),
        ({"spec.env": [{"name": "1A", "value": "x"}]}, "spec.env[0].name: is not a name: write letters"),
        ({"spec.env": [{"name": "A", "value": 5}]}, "spec.env[0].value: expects a text: put it in quotes"),
        ({"spec.reward.memory": "2GB"}, 'spec.reward.memory is "2GB": is not a quantity: write 2Gi'),
        ({"spec.reward.memory": "lots"}, 'spec.reward.memory is "lots": is not a quantity: write a number'),
        (
            {"spec.reward": {"type": "function", "function": "score"}},
            'spec.reward.function is "score": names no function: write module:name, such as my_rewards:score',
        ),
        (
            {"spec.reward.type": "tasks", "spec.data.train": {"tasks": [{"name": "x", "config": {"a": [1]}}]}},
            "spec.data.train.tasks[0].config.a is [1]: write a number, true, false or a text",
        ),
        ({"spec.data": None}, "spec.data: missing: write data: {train: {path: /data/train.parquet}}"),
        ({"metadata.name": None}, "metadata.name: missing: write name: my-job"),
        ({"metadata.lables": {}}, "metadata.lables: there is no such field: did you mean labels?"),
        ({"metadata.colour": "red"}, "metadata.colour: there is no such field: put it under labels or annotations"),
        ({"apiVersion": "drumroll.dev/v1"}, 'apiVersion is "drumroll.dev/v1": write drumroll.dev/v1alpha1'),
        ({"kind": "RlJob"}, 'kind is "RlJob": write RLJob'),
        ({"spec.weights.volume.persistentVolumeClaim": {}}, "claimName: missing: write claimName: …"),
    ],
)
def test_common_mistakes_have_their_sentence(
    changes: dict[str, Any], message: str, job_text: Callable[..., str]
) -> None:
    told = "\n".join(str(problem) for problem in parse_jobs(job_text(changes), "job.yaml").problems)
    assert message in told


@pytest.mark.parametrize(
    ("place", "name", "advice"),
    [
        ("spec.algorithm", "group_size", "names are written in camelCase: write groupSize"),
        ("spec.algorithm", "num_generations", "it is called groupSize here: write spec.algorithm.groupSize"),
        ("spec", "max_staleness", "it is called maxPolicyLag here: write spec.maxPolicyLag"),
        ("spec", "max_head_offpolicyness", "it is called maxPolicyLag here: write spec.maxPolicyLag"),
        ("spec", "groupSize", "it has another place: write spec.algorithm.groupSize"),
        ("spec.rollout", "replicsa", "did you mean replicas?"),
        ("spec", "checkpiont", "did you mean spec.trainer.checkpoint?"),
        ("spec.model", "frobnicate", "known here are path, dtype, chatTemplate, trustRemoteCode"),
        ("", "steps", "it has another place: write spec.steps"),
        ("spec.env[]", "val", "did you mean value?"),
    ],
)
def test_unknown_names_lead_to_known_ones(place: str, name: str, advice: str) -> None:
    assert advise(place, name) == advice


def test_names_of_other_tools_lead_to_fields_that_exist() -> None:
    from drumroll.api import names

    assert set(names.PEERS) <= set(spec_nodes())


def test_no_sentence_speaks_of_pydantic(job_text: Callable[..., str]) -> None:
    told = parse_jobs(job_text({"spec": {"model": 1, "data": 2, "reward": 3, "env": 4, "x": 5}}), "job.yaml").problems
    assert len(told) == 5
    assert not any(re.search("pydantic|[Ii]nput|NoneType", str(problem)) for problem in told)
