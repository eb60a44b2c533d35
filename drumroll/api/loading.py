"""Job files to RLJobs: every problem of every document is found in one go, none is repaired in silence.

A file may hold many documents and Lists; objects of other kinds are left to their owners and noted.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drumroll.api.advice import advise_spec
from drumroll.api.base import RULES_LATER
from drumroll.api.explain import EXAMPLES, Explained, explain, explain_broken
from drumroll.api.problems import InvalidJobs, Location, Problem, dotted, shown
from drumroll.api.spec import RLJob
from drumroll.api.tree import broken_rules
from drumroll.api.yaml_source import Document, parse_documents

API_VERSION = "drumroll.dev/v1alpha1"
_MOST_BYTES = 3 << 20
_METADATA = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "labels",
        "annotations",
        "generateName",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "managedFields",
        "ownerReferences",
        "finalizers",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    }
)


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A valid job and where it was."""

    job: RLJob
    file: str
    document: int
    line: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What files hold. `jobs` are valid even where `problems` name others that are not."""

    jobs: tuple[LoadedJob, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()


def load_jobs(source: str | Path) -> list[RLJob]:
    """The jobs of a file, or of standard input (`-`), or of a text (a string with a line break).

    Raises:
        InvalidJobs: the text of the error names every problem, one a line.
    """
    is_text = isinstance(source, str) and "\n" in source
    loaded = parse_jobs(str(source), "<text>") if is_text else read_jobs([str(source)])
    if loaded.problems:
        raise InvalidJobs(loaded.problems)
    return [entry.job for entry in loaded.jobs]


def read_jobs(files: Sequence[str]) -> Loaded:
    """Everything that these files hold; `-` is standard input."""
    parts = []
    for file in files:
        try:
            parts.append(parse_jobs(_read(file), "<stdin>" if file == "-" else file))
        except InvalidJobs as error:
            parts.append(Loaded(problems=error.problems))
    jobs = tuple(entry for part in parts for entry in part.jobs)
    problems = [problem for part in parts for problem in part.problems]
    if len(parts) > 1:
        problems += [problem for problem in _same_names(jobs) if problem not in problems]
    return Loaded(
        jobs,
        tuple(problems),
        tuple(warning for part in parts for warning in part.warnings),
        tuple(note for part in parts for note in part.notes),
    )


def parse_jobs(text: str, file: str) -> Loaded:
    """Everything that a text holds; `file` is what messages call it."""
    documents, problems = parse_documents(text, file)
    if not documents and not problems:
        problems.append(Problem(file, "is empty: write an RLJob, such as the ones under examples/"))
    jobs: list[LoadedJob] = []
    warnings: list[Problem] = []
    notes: list[Problem] = []
    for document, data, root in _objects(documents):
        if note := _other_kind(data):
            notes.append(Problem(file, note, document.number, document.line_of(root)))
            continue
        found, job = _check(document, data, root, file)
        problems += found
        if job is not None and document.sound:
            line = document.line_of((*root, "metadata", "name"))
            jobs.append(LoadedJob(job, file, document.number, line))
            warnings += _warnings(job, document, root, file)
    if not jobs and not problems:
        problems.append(Problem(file, "holds no RLJob: write kind: RLJob and apiVersion: drumroll.dev/v1alpha1"))
    problems += _same_names(jobs)
    problems.sort(key=lambda problem: (problem.document or 0, problem.line or 0))
    return Loaded(tuple(jobs), tuple(problems), tuple(warnings), tuple(notes))


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read(_MOST_BYTES + 1) if file == "-" else _read_file(Path(file))
        if len(data) > _MOST_BYTES:
            raise InvalidJobs([Problem(file, "is larger than 3 MiB: too large for a job file")])
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidJobs([Problem(file, f"is not UTF-8 text (byte {error.start}): save it as UTF-8")]) from error
    except OSError as error:
        raise InvalidJobs([Problem(file, f"cannot be read: {error.strerror}")]) from error


def _read_file(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_MOST_BYTES + 1)


def _objects(documents: Iterable[Document]) -> Iterator[tuple[Document, Any, Location]]:
    """Every object with its place in its document; Lists are opened."""
    for document in documents:
        data = document.data
        if isinstance(data, dict) and data.get("kind") == "List" and isinstance(data.get("items"), list):
            for index, item in enumerate(data["items"]):
                yield document, item, ("items", index)
        else:
            yield document, data, ()


def _other_kind(data: Any) -> str | None:
    """The note on an object that is not ours; None where it is, or where it is none at all."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        return None
    version = str(data.get("apiVersion", ""))
    if version.startswith("drumroll.dev/") or data["kind"].lower() in ("rljob", "rljobs"):
        return None
    return f"skipped {data['kind']}: only RLJobs are checked here" if version else None


def _check(document: Document, data: Any, root: Location, file: str) -> tuple[list[Problem], RLJob | None]:
    def problem(location: Location, message: str, value: str | None) -> Problem:
        place = (*root, *location)
        return Problem(file, message, document.number, document.line_of(place), dotted(location), value)

    if not isinstance(data, dict):
        what = shown("", data)
        return [
            problem((), f"expects an object with apiVersion, kind, metadata and spec, but found {what}", None)
        ], None
    if not data.keys() & {"apiVersion", "kind", "spec"}:
        message = "not a Kubernetes object: a job begins with apiVersion: drumroll.dev/v1alpha1 and kind: RLJob"
        return [problem((), message, None)], None
    data = {key: value for key, value in data.items() if key != "status"}
    problems = [
        problem(("metadata", name), f"there is no such field: {advice}", None) for name, advice in _metadata(data)
    ]
    job, explained = _validate(data)
    problems += [problem(*parts) for parts in explained]
    return problems, job if not problems else None


def _metadata(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Unknown names in metadata, which the API server refuses too."""
    metadata = data.get("metadata")
    for name in metadata if isinstance(metadata, dict) else ():
        if name not in _METADATA:
            near = get_close_matches(name, sorted(_METADATA), n=1)
            yield name, f"did you mean {near[0]}?" if near else "put it under labels or annotations"


def _validate(data: dict[str, Any]) -> tuple[RLJob | None, list[Explained]]:
    """The job, or all that is wrong with it.

    Contradictions can only be judged where the fields themselves are right. So what is wrong is cut out (or replaced
    by an example, where it is required) and the rest judged again; what is said about a place that was cut out does
    not count.
    """
    found: list[Explained] = []
    cut: list[Location] = []
    mended = data
    while True:
        try:
            job = RLJob.model_validate(mended, strict=True, by_alias=True, by_name=False, context=RULES_LATER)
            break
        except ValidationError as error:
            new = [entry for entry in error.errors(include_url=False) if not _overlap(tuple(entry["loc"]), cut)]
        if not new:
            return None, found
        found += [explain(entry) for entry in new]
        places = [tuple(entry["loc"]) for entry in new]
        cut += places
        mended = _mended(mended, places, ())
    for broken in broken_rules(job):
        if not any(_overlap(broken.parts(field), cut) for field in broken.rule.reads):
            found.append(explain_broken(broken, data))
    return (job if not found else None), found


def _overlap(location: Location, cut: Sequence[Location]) -> bool:
    """Whether one of these places lies in, at or around a location."""
    return any(place[: len(location)] == location or location[: len(place)] == place for place in cut)


def _mended(data: Any, places: Sequence[Location], root: Location) -> Any:
    """A copy without these places, or with an example there; a list with a wrong item goes as a whole."""
    if not isinstance(data, dict):
        return data
    copy = {}
    for key in dict.fromkeys((*data, *(place[0] for place in places))):
        inner = [place[1:] for place in places if place[0] == key]
        if () in inner or any(isinstance(place[0], int) for place in inner):
            if (example := EXAMPLES.get(dotted((*root, key)))) is not None:
                copy[key] = example
        else:
            copy[key] = _mended(data[key], inner, (*root, key)) if inner else data[key]
    return copy


def _warnings(job: RLJob, document: Document, root: Location, file: str) -> Iterator[Problem]:
    for field, message in advise_spec(job.spec):
        parts: list[str | int] = []
        for part in field.split("."):
            name, _, index = part.partition("[")
            parts += [name, int(index[:-1])] if index else [name]
        yield Problem(file, message, document.number, document.line_of((*root, *parts)), field)


def _same_names(jobs: Sequence[LoadedJob]) -> Iterator[Problem]:
    first: dict[tuple[str, str], LoadedJob] = {}
    for entry in jobs:
        metadata = entry.job.metadata
        other = first.setdefault((metadata.namespace, metadata.name), entry)
        if other is not entry:
            message = f"another job has this name, at {other.file}:{other.line}: write another name"
            yield Problem(entry.file, message, entry.document, entry.line, "metadata.name", shown("", metadata.name))
