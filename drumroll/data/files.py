"""Rows of one data file: Parquet, JSON Lines, a JSON array, or Arrow IPC.

A row is a plain dict of plain Python values, whatever the file: lists are lists, mappings are dicts. The columnar
formats give every struct of a column the same keys and fill what a row never had with null; such null members are
dropped again, so that a row read from Parquet equals the same row read from JSON Lines. A byte order mark, CRLF,
blank lines and a missing last newline do no harm.
"""

import base64
import datetime
import decimal
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumroll.errors import DataError

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".arrow")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a data set in the order of its files."""

    origin: str
    """What was read, for messages."""
    columns: tuple[str, ...]
    """All top-level columns, in the order in which they first appear."""
    rows: list[Row]


def read_file(path: Path, *, max_rows: int | None = None) -> list[Row]:
    """Read a data file's rows, at most `max_rows` of them.

    Raises:
        DataError: the file is missing, unreadable, of an unknown kind, empty, or broken.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: data files end in {', '.join(SUFFIXES)}, not in {path.suffix!r}")
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: it has 0 bytes; a data file holds at least one row")
        rows = list(_rows_of(path, max_rows))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; paths are relative to the job file") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not rows:
        raise DataError(f"{path} is empty: it has no rows; a data file holds at least one row")
    return rows


def _rows_of(path: Path, max_rows: int | None) -> Iterator[Row]:
    if path.suffix in (".parquet", ".arrow"):
        return _columnar_rows(path, max_rows)
    return _json_rows(path, max_rows)


def _json_rows(path: Path, max_rows: int | None) -> Iterator[Row]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if path.suffix == ".json" and text.lstrip().startswith("["):
        yield from _array_rows(path, text, max_rows)
        return
    count = 0
    # Only a line feed ends a line: str.splitlines would also cut at U+2028 inside a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if max_rows is not None and count >= max_rows:
            return
        count += 1
        yield _object(path, f"line {number}", _parse(path, f"line {number}", line))


def _array_rows(path: Path, text: str, max_rows: int | None) -> Iterator[Row]:
    for number, value in enumerate(_parse(path, "its array", text)[:max_rows], start=1):
        yield _object(path, f"row {number}", value)


def _parse(path: Path, where: str, text: str) -> Any:
    try:
        return json.loads(text)
    # JSONDecodeError, and a number of more digits than Python reads.
    except (ValueError, RecursionError) as error:
        form = "; a .json file is one array of objects, or one object a line" if path.suffix == ".json" else ""
        raise DataError(f"{path}, {where}: not JSON: {error}{form}") from error


def _object(path: Path, where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{path}, {where}: a row is a JSON object, not {type(value).__name__}")
    return value


def _columnar_rows(path: Path, max_rows: int | None) -> Iterator[Row]:
    import pyarrow as pa

    left = max_rows
    try:
        for batch in _batches(path):
            _refuse_repeated_columns(path, batch.schema.names)
            part = batch if left is None else batch.slice(0, left)
            for row in part.to_pylist(maps_as_pydicts="strict"):
                yield {name: plain(value) for name, value in row.items()}
            if left is not None:
                left -= part.num_rows
                if left <= 0:
                    return
    except (pa.ArrowException, KeyError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=4096)
        return
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            source.seek(0)
            file = pa.ipc.open_file(source)
            reader = (file.get_batch(index) for index in range(file.num_record_batches))
        yield from reader


def _refuse_repeated_columns(path: Path, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{path} has more than one column named {', '.join(repeated)}; rename them")


def plain(value: Any) -> Any:
    """A columnar value as JSON can hold it: no null members, times as ISO 8601, decimals as text, bytes as base64."""
    if isinstance(value, dict):
        return {str(key): plain(member) for key, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value
