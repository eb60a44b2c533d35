"""The prepared data set: token ids and reward inputs of every prompt, on disk, memory-mapped, with a content digest.

    <data_dir>/train.arrow, eval.arrow    Arrow IPC: row int64, source_row int64, prompt_ids list<int32>,
                                          prompt_text, reward (JSON)
    <data_dir>/dataset.json               DatasetInfo of both, written last

Rows are numbered from 0 in the order of training's source; `source_row` is the row of the user's file, from 1. The
digest is SHA-256 over prompt ids and reward inputs of all rows in order: equal digests are equal data sets, whatever
file they came from.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from drumroll.errors import CorruptError, DataError

Name = Literal["train", "eval"]
INFO_FILE = "dataset.json"
_BATCH = 8192


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """One row as it is stored."""

    source_row: int
    prompt_ids: list[int]
    prompt_text: str
    reward: dict[str, Any]
    """{prompt, answer, metadata, columns}."""

    def reward_json(self) -> str:
        """Canonical JSON of `reward`."""
        return json.dumps(self.reward, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What a prepared data set is."""

    digest: str
    """SHA-256 of its content, hexadecimal."""
    num_prompts: int
    min_prompt_tokens: int
    mean_prompt_tokens: float
    max_prompt_tokens: int
    tokenizer_digest: str
    eos_token_ids: tuple[int, ...]
    """Every token that ends an answer; empty where the model has none."""
    pad_token_id: int
    """The tokenizer's, else its end token's, else 0. Masks are made from lengths, never from this id."""
    source: str
    """What was read."""
    layout: str
    """Recognised layout: verl, skyrl, slime, trl, areal, roll, openrlhf, gsm8k, tasks or custom."""
    columns: dict[str, str]
    """Part (prompt, answer, tools, metadata) to column."""
    all_columns: tuple[str, ...]
    """Every top-level column but the prompt's."""
    skipped_rows: int
    """Rows left out for their length (`data.overlongPrompts: skip`)."""
    eval: "DatasetInfo | None" = None
    """The held-out prompts, if there are any."""

    def to_json(self) -> str:
        """The text of dataset.json."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DatasetInfo":
        """From what `to_json` wrote, parsed."""
        inner = values.get("eval")
        return cls(
            **{
                **values,
                "eos_token_ids": tuple(values["eos_token_ids"]),
                "all_columns": tuple(values["all_columns"]),
                "eval": None if inner is None else cls.from_dict(inner),
            }
        )

    @classmethod
    def load(cls, data_dir: Path) -> "DatasetInfo":
        """Read dataset.json.

        Raises:
            CorruptError: it is missing or broken.
        """
        try:
            return cls.from_dict(json.loads((data_dir / INFO_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CorruptError(f"{data_dir / INFO_FILE} is not a prepared data set: {error!r}") from error


def describe_difference(old: DatasetInfo, new: DatasetInfo) -> str | None:
    """Why a run that was started with `old` must not go on with `new`; None where they are the same.

    Digests and row counts of both are named, so that a swapped, longer, shorter or reordered file is told apart.
    """
    parts = [_difference("data.train", old, new)]
    if old.tokenizer_digest != new.tokenizer_digest:
        parts.append(f"the tokenizer was {old.tokenizer_digest[:16]} and is now {new.tokenizer_digest[:16]}")
    if old.eval is not None and new.eval is not None:
        parts.append(_difference("data.eval", old.eval, new.eval))
    elif old.eval is not new.eval:
        parts.append(f"data.eval was {_counted(old.eval)} and is now {_counted(new.eval)}")
    found = [part for part in parts if part is not None]
    return "; ".join(found) if found else None


def _difference(field: str, old: DatasetInfo, new: DatasetInfo) -> str | None:
    if old.digest == new.digest:
        return None
    return f"{field} was {_counted(old)} and is now {_counted(new)}"


def _counted(info: DatasetInfo | None) -> str:
    return "unset" if info is None else f"{info.num_prompts} rows with digest {info.digest[:16]} ({info.source})"


def content_digest(rows: Iterable[PreparedRow]) -> str:
    """SHA-256 over prompt ids and reward inputs in order. Pure."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.asarray(row.prompt_ids, dtype="<i4").tobytes())
        digest.update(b"\0" + row.reward_json().encode() + b"\n")
    return digest.hexdigest()


def write_rows(rows: Sequence[PreparedRow], path: Path) -> None:
    """Write an Arrow file; it appears whole or not at all.

    Raises:
        DataError: the directory cannot be written to.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            ("row", pa.int64()),
            ("source_row", pa.int64()),
            ("prompt_ids", pa.list_(pa.int32())),
            ("prompt_text", pa.string()),
            ("reward", pa.string()),
        ]
    )
    temporary = path.with_name(f"{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for start in range(0, len(rows), _BATCH):
                part = rows[start : start + _BATCH]
                columns = [
                    list(range(start, start + len(part))),
                    [row.source_row for row in part],
                    [row.prompt_ids for row in part],
                    [row.prompt_text for row in part],
                    [row.reward_json() for row in part],
                ]
                arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise DataError(f"the prepared data set cannot be written to {path}: {error}") from error


def write_info(info: DatasetInfo, data_dir: Path) -> None:
    """Write dataset.json; call it after the rows are written."""
    temporary = data_dir / f"{INFO_FILE}.writing"
    temporary.write_text(info.to_json(), encoding="utf-8")
    os.replace(temporary, data_dir / INFO_FILE)


class PreparedDataset:
    """A prepared data set, memory-mapped: opening costs nothing, reading a row reads that row."""

    def __init__(self, table: Any, info: DatasetInfo) -> None:
        self.info = info
        self._table = table
        ids = table.column("prompt_ids")
        lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in ids.chunks]
        self._tokens = np.concatenate(lengths).astype(np.int32) if lengths else np.zeros(0, np.int32)

    @classmethod
    def open(cls, path: Path, name: Name) -> "PreparedDataset":
        """Open one of the data sets in a data directory.

        Raises:
            CorruptError: it is missing, broken, or has another number of rows than dataset.json says.
        """
        import pyarrow as pa

        whole = DatasetInfo.load(path)
        info = replace(whole, eval=None) if name == "train" else whole.eval
        if info is None:
            raise CorruptError(f"{path} has no eval data set")
        file = path / f"{name}.arrow"
        try:
            table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        except (OSError, pa.ArrowException) as error:
            raise CorruptError(f"{file} is not a prepared data set: {error}") from error
        if table.num_rows != info.num_prompts:
            raise CorruptError(f"{file} has {table.num_rows} rows, {INFO_FILE} says {info.num_prompts}")
        return cls(table, info)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def prompt_ids(self, row: int) -> list[int]:
        """Token ids of a prompt, row from 0."""
        ids: list[int] = self._cell("prompt_ids", row)
        return ids

    def prompt_text(self, row: int) -> str:
        """A prompt after the template."""
        return str(self._cell("prompt_text", row))

    def source_row(self, row: int) -> int:
        """The row of the user's file, from 1."""
        return int(self._cell("source_row", row))

    def prompt_tokens(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Lengths of all prompts, in tokens: int32, shape (rows,)."""
        return self._tokens

    def reward_inputs(self, row: int) -> dict[str, Any]:
        """What a reward gets: every column of the row (None where only other rows have it).

        And `prompt` (messages or text as given), `answer`, `metadata`, `data_source` (None where there is none).
        """
        stored = json.loads(self._cell("reward", row))
        columns = dict.fromkeys(self.info.all_columns) | stored["columns"]
        known = {"prompt": stored["prompt"], "answer": stored["answer"], "metadata": stored["metadata"]}
        inputs: dict[str, Any] = {"data_source": None} | columns | known
        return inputs

    def _cell(self, column: str, row: int) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._table.column(column)[row].as_py()
