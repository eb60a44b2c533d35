"""metrics.jsonl and timeline.jsonl: rows gathered in memory, written in one go. A full disk costs rows, not the job."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]


class LinesFile:
    """A file of JSON rows; without a path it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: list[Row] = []
        self._failed = False

    def add(self, row: Row) -> None:
        """Keep a row until the next `flush`."""
        if self._path is not None:
            self._rows.append(row)

    def flush(self) -> None:
        """Append what was added."""
        if self._path is None or not self._rows:
            return
        text = "".join(json.dumps(row) + "\n" for row in self._rows)
        self._rows = []
        self._attempt(lambda path: _append(path, text))

    def read(self) -> list[dict[str, Any]]:
        """The rows on disk; a last line that a crash cut short is left out."""
        if self._path is None or not self._path.exists():
            return []
        return [row for line in self._path.read_text().splitlines() if (row := _parse(line)) is not None]

    def mend(self) -> None:
        """End a line that a crash cut short, so that the next row has a line of its own."""
        rows = self.read()
        if rows:
            self._attempt(lambda path: _replace(path, rows))

    def _attempt(self, write: Callable[[Path], None]) -> None:
        if self._path is None:
            return
        try:
            write(self._path)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("%s cannot be written, rows are lost: %s", self._path, error)
            self._failed = True


class MetricsFile(LinesFile):
    """metrics.jsonl: one row per trained step of the final story, in the order of steps."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self.last_step = max((row["step"] for row in self.read()), default=-1)
        """The last step that has a row; -1 where there is none."""

    def add_step(self, row: Row) -> None:
        """Add a step's row; a step that is trained anew replaces its old row and all behind it."""
        if row["step"] <= self.last_step:
            self.cut(from_step=row["step"])
        self.add(row)
        self.last_step = row["step"]

    def cut(self, *, from_step: int) -> None:
        """Drop the rows of `from_step` and later steps: their lineage was given up."""
        if from_step > self.last_step:
            return
        self.flush()
        kept = [row for row in self.read() if row["step"] < from_step]
        self._attempt(lambda path: _replace(path, kept))
        self.last_step = max((row["step"] for row in kept), default=-1)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def _replace(path: Path, rows: list[dict[str, Any]]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    temporary.replace(path)
