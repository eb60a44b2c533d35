"""Which column holds what: the layouts of verl, SkyRL, slime, TRL, OpenRLHF, AReaL and ROLL, and the job's overrides.

Pure. A layout is chosen once, from the column names; a file whose columns leave a choice is refused with what to write.
"""

import contextlib
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drumroll.api.sources import Columns
from drumroll.errors import DataError, JobError

MISSING = object()
"""What `lookup` gives for a column that a row does not have; None is a null."""

ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "label", "target", "final_answer")


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Where a row's parts are; None: the data set has no such part."""

    layout: str
    """Name of the recognised layout, or `custom`."""
    prompt: str
    answer: str | None
    tools: str | None
    metadata: str | None
    json_columns: tuple[str, ...] = ()

    def used(self) -> dict[str, str]:
        """Part to column, as recorded with the prepared data set."""
        parts = {"prompt": self.prompt, "answer": self.answer, "tools": self.tools, "metadata": self.metadata}
        return {part: column for part, column in parts.items() if column is not None}


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value of a column; a dot goes into nested columns unless a column has that very name."""
    if path in row:
        return row[path]
    head, dot, rest = path.partition(".")
    while dot:
        if head in row:
            inner = row[head]
            return lookup(inner, rest) if isinstance(inner, Mapping) else MISSING
        step, dot, rest = rest.partition(".")
        head = f"{head}.{step}"
    return MISSING


def parse_json_column(row: dict[str, Any], path: str) -> None:
    """Replace a column's text by the JSON value that it is; what is no text stays as it is.

    Raises:
        ValueError: it is not JSON.
    """
    value = lookup(row, path)
    if isinstance(value, str):
        _replace(row, path, json.loads(value))


def _replace(row: dict[str, Any], path: str, value: Any) -> None:
    """Set a column, nested ones in copies of what holds them."""
    if path in row:
        row[path] = value
        return
    head, _, rest = path.partition(".")
    while head not in row:
        step, _, rest = rest.partition(".")
        head = f"{head}.{step}"
    inner = dict(row[head])
    _replace(inner, rest, value)
    row[head] = inner


def _with_json(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The row with its JSON columns opened, as far as they are JSON: what is not is told when rows are checked."""
    opened = dict(row)
    for name in names:
        with contextlib.suppress(ValueError, RecursionError):
            parse_json_column(opened, name)
    return opened


def map_columns(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], wanted: Columns, *, field: str, needs_answer: bool = True
) -> ColumnMap:
    """Recognise the layout of rows with these column names and apply the job's overrides.

    `field` is the job field for messages, such as `data.train`. Without `needs_answer`, of several columns that could
    hold the answer only the one of that very name does.

    Raises:
        JobError: an override names a column that no row has.
        DataError: no prompt column is recognised, or several could hold the answer.
    """
    columns = tuple(names)
    rows = [_with_json(row, wanted.json_columns) for row in rows] if wanted.json_columns else list(rows)
    for part in ("prompt", "answer", "tools", "metadata"):
        _check_override(rows, columns, getattr(wanted, part), f"{field}.columns.{part}")
    for name in wanted.json_columns:
        _check_override(rows, columns, name, f"{field}.columns.jsonColumns")
    layout, prompt, answer, metadata = _recognise(rows, columns)
    prompt = wanted.prompt or prompt
    if prompt is None:
        raise DataError(
            f"{field}: no column of {_listed(columns)} is a known prompt column (prompt, messages, input, question); "
            f"set {field}.columns.prompt"
        )
    if wanted.answer is None and layout == "trl":
        candidates = [name for name in ANSWER_COLUMNS if name in columns and name != prompt]
        answer = _single_answer(candidates, field=field, needs_answer=needs_answer)
    overridden = wanted.prompt is not None or wanted.answer is not None
    return ColumnMap(
        layout="custom" if overridden else layout,
        prompt=prompt,
        answer=wanted.answer or answer,
        tools=wanted.tools or ("tools" if "tools" in columns else None),
        metadata=wanted.metadata or metadata,
        json_columns=tuple(wanted.json_columns),
    )


def _recognise(
    rows: list[Mapping[str, Any]], columns: tuple[str, ...]
) -> tuple[str, str | None, str | None, str | None]:
    """(layout, prompt, answer, metadata) by the columns alone."""
    metadata = next((name for name in ("metadata", "extra_info") if name in columns), None)
    if "prompt" in columns:
        for layout, outer in (("verl", "reward_model"), ("skyrl", "reward_spec")):
            path = f"{outer}.ground_truth"
            if any(lookup(row, path) is not MISSING for row in rows):
                return layout, "prompt", path, metadata
        if "label" in columns and not any(name in columns for name in ANSWER_COLUMNS if name != "label"):
            return "slime", "prompt", "label", metadata
        return "trl", "prompt", None, metadata
    for layout, prompt, answer in (
        ("areal", "messages", "answer"),
        ("roll", "messages", "ground_truth"),
        ("slime", "messages", "label"),
        ("openrlhf", "input", "label"),
        ("gsm8k", "question", "answer"),
    ):
        if prompt in columns and answer in columns:
            return layout, prompt, answer, metadata
    prompt_only = next((name for name in ("messages", "input", "question") if name in columns), None)
    return "trl", prompt_only, None, metadata


def _single_answer(candidates: list[str], *, field: str, needs_answer: bool) -> str | None:
    if len(candidates) > 1 and not needs_answer:
        return "answer" if "answer" in candidates else None
    if len(candidates) > 1:
        raise DataError(
            f"{field}: the columns {_listed(candidates)} could each hold the answer; set {field}.columns.answer"
        )
    return candidates[0] if candidates else None


def _check_override(rows: list[Mapping[str, Any]], columns: tuple[str, ...], name: str | None, field: str) -> None:
    if name is None or any(lookup(row, name) is not MISSING for row in rows):
        return
    near = difflib.get_close_matches(name, columns, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise JobError(f"{field}: no row has a column {name!r}; there are {_listed(columns)}{hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
