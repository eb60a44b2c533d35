"""What may change while a job lives; everything else is frozen, on the server and offline."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from drumroll.api.crd import custom_resource_definition
from drumroll.api.lifetime import LIVE, frozen_fields, is_live, refused_changes
from drumroll.api.spec import RLJob, RLJobSpec
from drumroll.api.tree import spec_nodes

SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
LEAVES = [node for node in spec_nodes().values() if node.model is None]
FROZEN = [field.node.path for field in frozen_fields()]


def schema_at(path: str) -> dict[str, Any]:
    schema = SCHEMA["spec"]
    for part in path.split(".")[1:]:
        schema = schema["properties"][part]
    return dict(schema)


def spec(job_text: Callable[..., str], changes: dict[str, Any]) -> RLJobSpec:
    return RLJob.model_validate(yaml.safe_load(job_text(changes))).spec


def test_every_field_is_either_live_or_frozen() -> None:
    for leaf in LEAVES:
        frozen = [path for path in FROZEN if leaf.path == path or leaf.path.startswith((f"{path}.", f"{path}["))]
        assert len(frozen) == (0 if is_live(leaf.path) else 1), leaf.path


def test_every_live_field_exists() -> None:
    assert set(spec_nodes()) >= LIVE


def test_every_frozen_field_has_its_rule_on_the_object_that_holds_it() -> None:
    for field in frozen_fields():
        rules = schema_at(field.owner)["x-kubernetes-validations"]
        assert {"rule": field.cel, "message": field.message, "fieldPath": f".{field.node.name}"} in rules


def test_objects_that_hold_such_rules_are_always_there() -> None:
    """A rule about the old object is not judged where there was none."""
    for owner in {field.owner for field in frozen_fields()} - {"spec"}:
        node = spec_nodes()[owner]
        assert node.has_default or node.info.is_required(), owner


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"spec.steps": 9}, []),
        ({"spec.suspend": True, "spec.cleanup": {"onFailure": {"jobSeconds": 5}}}, []),
        ({"spec.rollout": {"replicas": 4, "maxReplicas": 9, "restartPolicy": {"maxRestarts": 0}}}, []),
        ({"spec.data.eval": {"path": "e.jsonl"}}, ["spec.data"]),
        ({"spec.rollout.threads": 4}, ["spec.rollout.threads"]),
        ({"spec.trainer.image": "r/i:2", "spec.seed": 4}, ["spec.seed", "spec.trainer.image"]),
        ({"spec.reward.function": "m:f", "spec.reward.type": "function"}, ["spec.reward.type", "spec.reward.function"]),
        ({"spec.trainer.podTemplatePatch": {}}, ["spec.trainer.podTemplatePatch"]),
        ({"spec.stream": {"url": "redis://s:1"}}, ["spec.stream.url"]),
    ],
)
def test_refused_changes(changes: dict[str, Any], fields: list[str], job_text: Callable[..., str]) -> None:
    found = list(refused_changes(spec(job_text, {}), spec(job_text, changes)))
    assert [field for field, _ in found] == fields
    assert all(": write what it was, or create another job" in message for _, message in found)


def test_steps_are_not_taken_out_again(job_text: Callable[..., str]) -> None:
    (change,) = refused_changes(spec(job_text, {"spec.steps": 4}), spec(job_text, {}))
    assert change == ("spec.steps", "steps cannot be taken out while the job lives: write a number of steps")


def test_case_k6_another_spelling_of_an_amount_is_no_change(job_text: Callable[..., str]) -> None:
    def sized(cpu: Any, memory: Any) -> RLJobSpec:
        resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
        changes = {f"spec.{role}.resources": resources for role in ("rollout", "trainer", "scheduler")}
        changes |= {"spec.stream.embedded": {"maxBytes": memory, "resources": resources}, "spec.reward.memory": memory}
        return spec(job_text, changes | {"spec.rollout.engine.kvCacheMemory": memory})

    one = sized("1000m", "1Gi")
    assert not list(refused_changes(one, sized(1, "1024Mi")))
    assert not list(refused_changes(one, sized("1.0", 1 << 30)))
    changed = [field for field, _ in refused_changes(one, sized("1001m", "1Gi"))]
    assert changed == [f"spec.{part}.resources" for part in ("rollout", "trainer", "scheduler", "stream.embedded")]
