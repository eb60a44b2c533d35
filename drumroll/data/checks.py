"""What a row must be before anything starts, and the report on those that are not.

Pure: a row in, an Example or problems out. Every row is looked at, so that one report shows all that is
wrong.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumroll.data.files import Row
from drumroll.data.layouts import MISSING, ColumnMap, lookup, parse_json_column
from drumroll.errors import DataError

Message = dict[str, Any]
REPORTED_ROWS = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a row cannot be used."""

    row: int
    """Row of the file or directory, from 1; blank lines do not count."""
    column: str
    what: str
    """Continues `column … `, such as `is null`."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row that can be used."""

    row: int
    """As in Problem."""
    prompt: str | list[Message]
    answer: Any
    """None where the data set has none."""
    tools: list[Any] | None
    metadata: Any
    columns: Row
    """All columns but the prompt's, as they are in the file."""


def check_row(row: Row, number: int, columns: ColumnMap, *, needs_answer: bool) -> Example | list[Problem]:
    """Check one row; `number` counts from 1."""
    problems: list[Problem] = []
    parsed = _with_json(row, number, columns, problems)
    prompt = _check_prompt(lookup(parsed, columns.prompt), number, columns.prompt, problems)
    answer = _optional(lookup(parsed, columns.answer)) if columns.answer else None
    if needs_answer and columns.answer:
        _check_answer(lookup(parsed, columns.answer), number, columns.answer, problems)
    tools = _check_tools(_optional(lookup(parsed, columns.tools)), number, columns, problems) if columns.tools else None
    if problems or prompt is None:
        return problems
    metadata = _optional(lookup(parsed, columns.metadata)) if columns.metadata else None
    rest = {name: value for name, value in parsed.items() if name != columns.prompt}
    bad = _unencodable(rest)
    if bad is not None:
        return [Problem(number, bad, "holds a lone surrogate, which is no text")]
    return Example(number, prompt, answer, tools, metadata, rest)


def _optional(value: Any) -> Any:
    return None if value is MISSING else value


def _with_json(row: Row, number: int, columns: ColumnMap, problems: list[Problem]) -> Row:
    parsed = dict(row)
    for name in columns.json_columns:
        try:
            parse_json_column(parsed, name)
        except (ValueError, RecursionError) as error:
            problems.append(Problem(number, name, f"is listed in jsonColumns but is not JSON: {error}"))
    return parsed


def _check_prompt(value: Any, number: int, column: str, problems: list[Problem]) -> str | list[Message] | None:
    what = _prompt_fault(value)
    if what is not None:
        problems.append(Problem(number, column, what))
        return None
    if isinstance(value, str):
        return value
    return [without_nulls(message) for message in value]


def _prompt_fault(value: Any) -> str | None:
    if value is MISSING:
        return "is missing"
    if value is None:
        return "is null"
    if isinstance(value, str):
        return _text_fault(value)
    if not isinstance(value, list):
        return f"is {type(value).__name__}, neither text nor a list of messages"
    if not value:
        return "is an empty list"
    faults = (_message_fault(message, index) for index, message in enumerate(value))
    fault = next((fault for fault in faults if fault is not None), None)
    if fault is None and not any(_has_text(message.get("content")) for message in value):
        fault = "has no text in any message"
    return fault


def _text_fault(value: str) -> str | None:
    if not value.strip():
        return "is empty"
    return None if _encodable(value) else "holds a lone surrogate, which is no text"


def _message_fault(message: Any, index: int) -> str | None:
    where = f"message {index + 1}"
    if not isinstance(message, Mapping):
        return f"has {where} that is {type(message).__name__}, not a mapping with role and content"
    role = message.get("role")
    if not isinstance(role, str) or not role:
        return f"has {where} without a role"
    content = message.get("content")
    if content is None:
        return None if message.get("tool_calls") else f"has {where} ({role}) whose content is null"
    if not isinstance(content, str | list):
        return f"has {where} ({role}) whose content is {type(content).__name__}, neither text nor a list of parts"
    return (
        None if _unencodable(dict(message)) is None else f"has {where} ({role}) with a lone surrogate, which is no text"
    )


def _has_text(content: Any) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    return bool(content)


def _check_answer(value: Any, number: int, column: str, problems: list[Problem]) -> None:
    what = "is missing" if value is MISSING else _answer_fault(value)
    if what is None and isinstance(value, list):
        faults = (_answer_fault(member) for member in value)
        what = next((f"has a member that {fault}" for fault in faults if fault is not None), None)
    if what is not None:
        problems.append(Problem(number, column, what))


def _answer_fault(value: Any) -> str | None:
    if value is None:
        return "is null"
    if isinstance(value, str | list | dict) and (not value or (isinstance(value, str) and not value.strip())):
        return "is empty"
    if isinstance(value, dict):
        return "is a mapping; the reward needs text, a number, or a list of accepted answers"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, which no answer can equal"
    return None


def _check_tools(value: Any, number: int, columns: ColumnMap, problems: list[Problem]) -> list[Any] | None:
    tools = value
    if isinstance(value, str):
        try:
            tools = json.loads(value) if value.strip() else None
        except ValueError as error:
            problems.append(Problem(number, str(columns.tools), f"is text that is not JSON: {error}"))
            return None
    if tools is not None and not isinstance(tools, list):
        problems.append(Problem(number, str(columns.tools), f"is {type(tools).__name__}, not a list of tool schemas"))
        return None
    return [without_nulls(tool) for tool in tools] if tools else None


def without_nulls(value: Any) -> Any:
    """Without null members of mappings, at any depth: a template must not see keys that a row never had."""
    if isinstance(value, Mapping):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(member) for member in value]
    return value


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else True


def _unencodable(row: Row) -> str | None:
    """The first column with text that UTF-8 cannot hold."""
    for name, value in row.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if not _encodable(text) or not _encodable(name):
            return name
    return None


def report(problems: Sequence[Problem], *, origin: str, num_rows: int) -> DataError:
    """All problems as one error: the first rows by number, then counts by column."""
    rows = {problem.row for problem in problems}
    lines = [f"  row {problem.row}, column {problem.column!r}: {problem.what}" for problem in problems[:REPORTED_ROWS]]
    if len(problems) > REPORTED_ROWS:
        lines.append(f"  and {len(problems) - REPORTED_ROWS} more")
    counts = Counter(problem.column for problem in problems)
    summary = ", ".join(f"{column!r} {count}" for column, count in counts.items())
    head = f"{origin}: {len(rows)} of {num_rows} rows cannot be used:"
    return DataError("\n".join([head, *lines, f"Problems by column: {summary}. Correct or remove these rows."]))
