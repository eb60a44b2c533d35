"""YAML text to plain data with line numbers, read as kubectl reads it.

`1e-6` is a number, `2024-01-01` and `1:30` are text, null means that the field is left out, a key that is there
twice is a mistake. Nothing but plain data is ever made, and its size is bounded.
"""

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml

from drumroll.api.problems import Location, Problem, dotted

_MOST_NODES = 200_000
"""Aliases let a small file unfold into a huge tree."""
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a YAML file."""

    number: int
    """From 1."""
    data: Any
    lines: dict[Location, int]
    """Line of each key and item, from 1."""
    sound: bool = True
    """False where a problem says that it cannot be read in one way alone."""

    def line_of(self, location: Location) -> int:
        """Line of a place, or of the nearest place around it."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]


def parse_documents(text: str, file: str) -> tuple[list[Document], list[Problem]]:
    """All documents that are not empty, and what keeps the text from being read.

    Behind a document that is no YAML, reading goes on with the next `---`.
    """
    reading = _Reading(file)
    lines = _without_json_tabs(text).split("\n")
    start: int | None = 0
    while start is not None:
        failed_at = reading.read("\n" * start + "\n".join(lines[start:]))
        start = None if failed_at is None else _next_document(lines, max(failed_at, start + 1))
    return reading.documents, reading.problems


@dataclass(slots=True)
class _Reading:
    """What has been found in a file so far."""

    file: str
    documents: list[Document] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    number: int = 0

    def read(self, text: str) -> int | None:
        """Add a text's documents; the line (from 0) at which it stops being YAML, None where it does not."""
        loader = None
        try:
            loader = _Loader(text)
            while loader.check_node():
                self.number += 1
                node = loader.get_node()
                builder = _Builder(loader, self.file, self.number)
                data = builder.build(node, ())
                self.problems += builder.problems
                if data is not None:
                    self.documents.append(Document(self.number, data, builder.lines, not builder.problems))
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(error, self.file, max(self.number, 1)))
            mark = getattr(error, "problem_mark", None)
            return None if mark is None else int(mark.line)
        except RecursionError:
            self.problems.append(Problem(self.file, "nested too deeply for a job file", self.number))
        finally:
            if loader is not None:
                loader.dispose()
        return None


def _next_document(lines: list[str], start: int) -> int | None:
    return next((number for number in range(start, len(lines)) if re.match(r"---(\s|$)", lines[number])), None)


def _without_json_tabs(text: str) -> str:
    """JSON may be indented with tabs, YAML may not; inside a JSON text no bare tab can stand."""
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars that kubectl's YAML knows."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("null", "bool", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0b[01]+|0x[0-9a-fA-F]+|0o?[0-7]+|0|[1-9][0-9]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)


@dataclass(slots=True)
class _Builder:
    """Makes the data of one document; collects lines and duplicate keys on the way."""

    loader: _Loader
    file: str
    number: int
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_nodes: int = 0

    def build(self, node: yaml.Node | None, location: Location) -> Any:
        assert node is not None  # check_node said so
        self.num_nodes += 1
        if self.num_nodes > _MOST_NODES:
            raise yaml.YAMLError(f"more than {_MOST_NODES} values: too large for a job file")
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*location, index)) for index, item in enumerate(node.value)]
        value = self._scalar(node)
        return self._text(value, node, location) if isinstance(value, str) else value

    def _text(self, value: str, node: yaml.Node, location: Location) -> str:
        """The text; of what no path, name or variable can hold, a problem."""
        found = re.search("[\0\ud800-\udfff]", value)
        if found is None:
            return value
        what = "a null character" if found[0] == "\0" else "half of a surrogate pair"
        line, path = node.start_mark.line + 1, dotted(location)
        self.problems.append(Problem(self.file, f"holds {what}: remove it", self.number, line, path))
        return value.encode("utf-8", "replace").decode().replace("\0", "?")

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self.loader.construct_object(node)
        except (ValueError, IndexError) as error:  # such as `!!int` before something that is none
            kind = node.tag.rpartition(":")[2]
            message = f"{node.value!r} is not of type {kind}"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark) from error

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        self._refuse_duplicates(node, location)
        data = self._merged(node, location)
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            key = key_node.value
            self.lines[(*location, key)] = key_node.start_mark.line + 1
            value = self.build(value_node, (*location, key))
            if value is None:
                data.pop(key, None)
            else:
                data[key] = value
        return data

    def _merged(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        """What `<<` brings in; of several sources the first wins."""
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if not isinstance(source, yaml.MappingNode):
                    raise yaml.constructor.ConstructorError(None, None, "<< expects mappings", source.start_mark)
                data = {**self.build(source, location), **data}
        return data

    def _refuse_duplicates(self, node: yaml.MappingNode, location: Location) -> None:
        first: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            if key_node.value in first and key_node.tag != _MERGE:
                message = f"the key is there twice, first on line {first[key_node.value]}"
                field_path = dotted((*location, key_node.value))
                self.problems.append(
                    Problem(self.file, message, self.number, line, field_path, suggestion="keep one of them")
                )
            first.setdefault(key_node.value, line)


def _syntax_problem(error: yaml.YAMLError, file: str, number: int) -> Problem:
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(file, f"not YAML: {' '.join(str(error).split())}", number)
    line = error.problem_mark.line + 1 if error.problem_mark else None
    advice = "indent with spaces, not with tabs" if "'\\t'" in str(error.problem) else None
    return Problem(file, f"not YAML: {error.problem}", number, line, suggestion=advice)
