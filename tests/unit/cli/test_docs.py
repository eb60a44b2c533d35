"""What the docs tell people to type and to write exists: verbs, options, make targets, chart values, fields, links."""

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from drumroll_cli import main as cli
from drumroll_cli.cluster.checks import RIGHTS
from drumroll_operator.conditions import CONDITIONS
from drumroll_operator.reasons import documented

from drumroll.api.loading import parse_jobs

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        ROOT / "deploy/helm/drumroll/README.md",
        ROOT / "deploy/images/README.md",
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MINIMAL: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"train": {"path": "d"}},
    "reward": {"type": "math"},
}


def ids(pages: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


def lines(page: Path) -> Iterator[str]:
    """Lines to type: those of fenced blocks without a language, continued lines joined, and short ones in the text."""
    text = page.read_text()
    for language, block in FENCE.findall(text):
        if language in ("", "bash", "sh"):
            yield from re.sub(r"\\\n\s*", " ", block).splitlines()
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def commands(page: Path, tool: str) -> list[list[str]]:
    """Calls of a tool, as words; comments, remarks behind wide spaces and what follows a `|` or `;` are left out."""
    found = []
    for line in lines(page):
        for part in re.split(r"[|;]|&&|\s{3,}", line.partition(" #")[0]):
            if part.strip().startswith(f"{tool} "):
                found.append(shlex.split(part, posix=True) if part.count("'") % 2 == 0 else part.split())
    return found


@cache
def options_of(verb: str) -> frozenset[str]:
    known = cli.VERBS[verb]
    app = typer.Typer(add_completion=False)
    app.command()(getattr(importlib.import_module(known.module), known.function))
    params = typer.main.get_command(app).params
    return frozenset({option for param in params for option in (*param.opts, *param.secondary_opts)} | {"--help", "-h"})


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_command_exists(page: Path) -> None:
    for words in commands(page, "drumroll"):
        verb = words[1].strip("[]")
        if verb.startswith("-"):
            assert verb in ("--help", "--version"), words
            continue
        assert verb in cli.VERBS, words
        for word in words[2:]:
            option = word.strip("[]").partition("=")[0]
            if option.startswith("-") and option != "-":
                assert option in options_of(verb), f"{' '.join(words)}: {verb} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page, "make"):
        for word in words[1:]:
            if re.fullmatch(r"[a-z0-9-]+", word):
                assert word in targets, words


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_value_of_the_chart_exists(page: Path) -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/drumroll/values.yaml").read_text())
    for words in commands(page, "helm"):
        for flag, setting in pairwise(words):
            if flag in ("--set", "--set-string"):
                place: Any = values
                for key in setting.partition("=")[0].split("."):
                    assert key in place, f"{setting}: no value {key}"
                    place = place[key]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_job_is_valid(page: Path) -> None:
    for language, block in FENCE.findall(page.read_text()):
        if language not in ("yaml", "yml"):
            continue
        for data in yaml.safe_load_all(block):
            if not isinstance(data, dict) or ("kind" in data and data["kind"] != "RLJob") or "spec" not in data:
                continue
            job = {"apiVersion": "drumroll.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "part"}, **data}
            job["spec"] = {**MINIMAL, **data["spec"]}
            loaded = parse_jobs(json.dumps(job), page.name)
            assert not loaded.problems, "\n".join(map(str, loaded.problems))


def slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower().replace("`", "")).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), f"{target}: no such file"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", other.read_text()), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}: no such heading"


def test_troubleshooting_knows_real_reasons() -> None:
    known = {*CONDITIONS, *documented(), "Degraded"}
    text = (ROOT / "docs/troubleshooting.md").read_text()
    for row in re.findall(r"^\| (.*?) \|", text, re.MULTILINE):
        for word in re.findall(r"`([A-Z][a-z]+[A-Z][A-Za-z]+)`", row):
            assert word in known | {"RLJob", "NotReady"}, word


def test_every_verb_is_in_the_docs() -> None:
    told = {words[1] for page in PAGES for words in commands(page, "drumroll")}
    assert set(cli.VERBS) <= told


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the table below a heading."""
    text = (ROOT / "docs" / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_operators_rights_are_the_charts() -> None:
    template = (ROOT / "deploy/helm/drumroll/templates/_rules.tpl").read_text()
    rules = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "", template, flags=re.DOTALL))
    given = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    told = set()
    for resources, verbs, _ in rows("rbac.md", "What the operator has"):
        for resource in re.findall(r"`([a-z/]+)`", resources):
            told |= {(resource, verb) for verb in verbs.split(", ")}
    assert {(resource, verb) for resource, verb in told if resource != "leases"} == given


def test_the_users_rights_are_those_that_doctor_asks_for() -> None:
    told = set()
    for _, rights, _ in rows("rbac.md", "What a user needs"):
        verbs = re.findall(r"\b(get|list|watch|create|patch|delete)\b", rights)
        told |= {(verb, resource) for resource in re.findall(r"`([a-z/]+)`", rights) for verb in verbs}
    assert {(right.verb, right.resource) for right in RIGHTS} <= told


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_file_of_this_repository_that_is_named_exists(page: Path) -> None:
    for line in lines(page):
        for path in re.findall(r"(?<![\w/])(?:examples|deploy|docs)/[\w./-]+", line):
            assert (ROOT / path.rstrip(".")).exists(), f"{path} in {line!r}"
