"""The CRD is structural and bounded everywhere; generated files are up to date."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumroll.api.crd import crd_yaml, custom_resource_definition
from drumroll.api.generate import generated_files, main, stale_files
from drumroll.api.reference import reference_page
from drumroll.api.tree import placed_rules, spec_nodes

ROOT = Path(__file__).parents[3]
VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}".strip("."))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key], f"{path}[]")


def test_generated_files_are_up_to_date() -> None:
    assert stale_files(ROOT) == []


def test_stale_files_are_named_and_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], tmp_path) == 1
    assert "deploy/crd/rljobs.drumroll.dev.yaml is stale" in capsys.readouterr().err
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == set(generated_files())


def test_the_schema_is_structural() -> None:
    for path, schema in schemas(SCHEMA):
        assert not {"$ref", "allOf", "oneOf", "not", "const", "title", "nullable"} & set(schema), path
        if schema.get("x-kubernetes-int-or-string"):
            assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert "type" in schema or schema == {"x-kubernetes-preserve-unknown-fields": True}, path


def test_every_text_list_map_and_number_is_bounded() -> None:
    for path, schema in schemas(SCHEMA):
        if path in ("apiVersion", "kind", "metadata"):
            continue
        kind = schema.get("type")
        if kind == "string":
            assert {"maxLength", "enum", "format"} & set(schema), path
        elif kind == "array":
            assert "maxItems" in schema, path
        elif kind in ("integer", "number"):
            assert {"minimum", "maximum"} <= set(schema), path
        elif "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_only_parameters_of_tasks_take_anything() -> None:
    loose = [path for path, schema in schemas(SCHEMA) if schema.get("x-kubernetes-preserve-unknown-fields")]
    assert loose == ["spec.data.train.tasks[].config[]", "spec.data.eval.tasks[].config[]"]


def test_every_field_is_described() -> None:
    for node in spec_nodes().values():
        assert node.description.endswith("."), node.path


def test_every_rule_is_there_at_every_place() -> None:
    held = {path: schema.get("x-kubernetes-validations", []) for path, schema in schemas(SCHEMA)}
    for path, rule in placed_rules():
        if rule.cel is not None:
            assert rule.cel in [entry["rule"] for entry in held[path]], (path, rule.id)


def test_columns_and_subresources() -> None:
    columns = {column["name"]: column.get("priority", 0) for column in VERSION["additionalPrinterColumns"]}
    assert [name for name, priority in columns.items() if not priority] == [
        "Phase", "Step", "Version", "Lag", "Rollout", "GPUs", "Age",
    ]  # fmt: skip
    paths = dict(schemas(SCHEMA))
    scale = VERSION["subresources"]["scale"]
    assert all(path[1:] in paths for path in scale.values())
    shown = {column["jsonPath"][1:] for column in VERSION["additionalPrinterColumns"]}
    assert {path for path in shown if path not in paths} == {
        "metadata.creationTimestamp",
        'status.conditions[?(@.type=="Ready")].reason',
    }


def test_the_yaml_is_the_object_without_anchors() -> None:
    assert yaml.safe_load(crd_yaml()) == custom_resource_definition()
    assert "&id" not in crd_yaml()


def test_the_page_lists_every_field_once() -> None:
    page = reference_page()
    for node in spec_nodes().values():
        owner = node.path.rpartition(".")[0]
        section = page.split(f"# `{owner}`\n")[1].split("\n#")[0]
        assert section.count(f"| `{node.name}`") == 1, node.path


def test_a_plain_kubectl_apply_can_hold_the_resource() -> None:
    """It keeps what was applied in an annotation, which may have 256 KiB."""
    assert len(json.dumps(custom_resource_definition(), separators=(",", ":"))) < 240 << 10
