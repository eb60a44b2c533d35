"""Values: what the schema refuses and says, tags and digests, registries, and that all of it is documented."""

import itertools
import json
import re
from typing import Any

import pytest
import yaml

DIGEST = "sha256:" + "ab" * 32
TAGS = ["20260101", "0123456", "1.10", "00215e6"]


def test_lint_finds_nothing(chart: Any) -> None:
    done = chart.helm("lint", "--strict", str(chart.path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("form", ["file", "--set-string"])
def test_a_tag_in_quotes_is_the_end_of_every_image_h2(chart: Any, tag: str, form: str) -> None:
    if form == "file":
        rendered = chart.render(values={"image": {"tag": tag}})
    else:
        rendered = chart.render("--set-string", f"image.tag={tag}")
    assert {image.rpartition("/")[2].partition(":")[2] for image in rendered.images} == {tag}


@pytest.mark.parametrize("tag", TAGS)
def test_a_bare_tag_is_kept_or_refused_with_advice_h2(chart: Any, tag: str) -> None:
    done = chart.helm("template", "drumroll", str(chart.path), "--set", f"image.tag={tag}")
    if done.returncode:
        assert "quotes" in done.stderr
        assert "--set-string" in done.stderr
    else:
        assert f"drumroll-operator:{tag}" in done.stdout
    assert "e+07" not in done.stdout
    assert ":1.1\n" not in done.stdout


@pytest.mark.parametrize("where", ["image", "images.rollout"])
def test_numbers_in_a_file_are_refused_with_advice_h2(chart: Any, where: str) -> None:
    values: Any = {"tag": 20260101}
    for key in reversed(where.split(".")):
        values = {key: values}
    said = chart.refusal(values=values)
    assert f"/{where.replace('.', '/')}/tag" in said
    assert "quotes" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"operator": {"replica": 3}}, "'replica' not allowed"),
        ({"console": {"image": {"tag": "1.10"}}}, "'console' not allowed"),
        ({"images": {"operator": {"digest": "abc"}}}, "64 hexadecimal digits"),
        ({"image": {"registry": "https://registry.example.com"}}, "without https://"),
        ({"image": {"tag": "latest"}}, 'the tag "latest" moves'),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
        ({"jobs": {"podSecurity": {"runAsUser": 0}}}, "/jobs/podSecurity/runAsUser"),
        ({"imagePullSecrets": ["regcred"]}, "/imagePullSecrets/0"),
        ({"operator": {"logLevel": "loud"}}, "/operator/logLevel"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
    ],
)
def test_mistakes_are_refused_where_they_are(chart: Any, values: Any, said: str) -> None:
    assert said in chart.refusal(values=values)


def test_a_digest_wins_over_every_tag(chart: Any) -> None:
    values = {"image": {"tag": "1.0"}, "images": {"rollout": {"tag": "2.0", "digest": DIGEST}}}
    images = chart.render(values=values).job_images
    assert images["rollout"] == f"drumroll-rollout@{DIGEST}"
    assert images["trainer"] == "drumroll-trainer:1.0"


def test_registries_from_the_nearest_to_the_parent_charts(chart: Any) -> None:
    values = {"global": {"imageRegistry": "far.example"}}
    assert all(image.startswith("far.example/drumroll-") for image in chart.render(values=values).images)
    values |= {"image": {"registry": "near.example:5000/mirror"}, "images": {"trainer": {"registry": "own.example"}}}
    images = chart.render(values=values).job_images
    assert images["rollout"].startswith("near.example:5000/mirror/drumroll-rollout:")
    assert images["trainer"].startswith("own.example/drumroll-trainer:")


def test_no_image_moves_by_itself(chart: Any) -> None:
    version = yaml.safe_load((chart.path / "Chart.yaml").read_text())["appVersion"]
    assert {image.rpartition(":")[2] for image in chart.render().images} == {version}


def test_a_private_registry_and_its_secret_reach_every_pod_h4(chart: Any) -> None:
    values = {"imagePullSecrets": [{"name": "regcred"}], "image": {"registry": "reg.example.test:5000/mirror"}}
    rendered = chart.render(values=values)
    assert len(rendered.pod_specs) == 2
    assert all(spec["imagePullSecrets"] == [{"name": "regcred"}] for spec in rendered.pod_specs)
    assert rendered.settings["imagePullSecrets"] == [{"name": "regcred"}]
    assert all(image.startswith("reg.example.test:5000/mirror/drumroll-") for image in rendered.images)


def test_the_schema_takes_no_unknown_key_anywhere(chart: Any) -> None:
    schema = json.loads((chart.path / "values.schema.json").read_text())
    open_ones = []

    def look(node: Any, path: str) -> None:
        if isinstance(node, dict):
            if "properties" in node and node.get("additionalProperties") is not False:
                open_ones.append(path)
            for key, child in node.items():
                look(child, f"{path}/{key}")
        elif isinstance(node, list):
            for index, child in enumerate(node):
                look(child, f"{path}/{index}")

    look(schema, "")
    assert open_ones == ["/properties/global"]  # Other charts keep their own values there.


def test_every_value_has_a_schema_and_a_line_in_the_readme(chart: Any) -> None:
    values = yaml.safe_load((chart.path / "values.yaml").read_text())
    documented = _documented((chart.path / "README.md").read_text())
    undocumented = [key for key in _leaves(values) if not any(key == d or key.startswith(f"{d}.") for d in documented)]
    assert undocumented == []
    leaves = list(_leaves(values))
    stale = [d for d in documented if not any(key == d or key.startswith(f"{d}.") for key in leaves)]
    assert stale == []


def _leaves(values: Any, prefix: str = "") -> Any:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _documented(readme: str) -> list[str]:
    """Keys of the table; `.x` continues the key before it, `<role>` stands for all four."""
    found: list[str] = []
    for row in re.findall(r"^\| (`.*?) \|", readme, re.MULTILINE):
        keys = re.findall(r"`([^`]+)`", row)
        stem = keys[0].rpartition(".")[0]
        found += [f"{stem}{key}" if key.startswith(".") else key for key in keys]
    roles = ("operator", "scheduler", "rollout", "trainer")
    spread = [[key.replace("<role>", role) for role in roles] if "<role>" in key else [key] for key in found]
    return list(itertools.chain.from_iterable(spread))
