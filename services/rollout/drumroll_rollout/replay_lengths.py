"""Answers without a model: how long each one is, and which tokens and log-probabilities it has.

Everything is a pure function of (seed, row, index, position), so that a sample that is generated again, or gone on
with by another replica, has the same tokens; weight versions do not enter.
"""

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from drumroll.errors import UserError

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """A 64-bit hash of integers (splitmix64 steps)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) * 0xBF58476D1CE4E5B9 + _GOLDEN & _MASK
        state ^= state >> 30
        state = state * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def _mix_positions(key: int, start: int, end: int) -> np.ndarray:
    """uint64 [end - start]: hashes of the positions start..end under `key`."""
    with np.errstate(over="ignore"):
        state = (np.arange(start, end, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class ReplayLengths:
    """Length in tokens of every answer, its end token included."""

    seed: int
    median_tokens: float = 64.0
    sigma: float = 0.8
    given: Sequence[int] = ()
    """Lengths to draw from; empty: log-normal."""
    by_row: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Lengths of the rows that the file names; a row's list is used by index, round and round."""

    def __call__(self, row: int, index: int) -> int:
        """Length of sample `index` of `row`; at least 1."""
        if lengths := self.by_row.get(row):
            return max(1, lengths[index % len(lengths)])
        key = mix(self.seed, row, index)
        if self.given:
            return max(1, self.given[key % len(self.given)])
        uniform = (key + 0.5) / 2.0**64
        deviate = statistics.NormalDist().inv_cdf(min(max(uniform, 1e-12), 1.0 - 1e-12))
        return max(1, round(self.median_tokens * math.exp(self.sigma * deviate)))


def read_lengths(path: Path, *, seed: int) -> ReplayLengths:
    """Read a CSV (with a header) or JSONL file with a column `tokens` and optionally `row` and `index`.

    Rows with `row` set the lengths of that row of the data set, in order of `index` (or of the file); all rows
    together are what other rows of the data set draw from.

    Raises:
        UserError: the file cannot be read, or a line of it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"rollout.engine.replay.lengths: cannot read {path}: {error}") from error
    records = list(_json_lines(path, text) if path.suffix == ".jsonl" else csv.DictReader(io.StringIO(text)))
    parsed = [_parse(path, number, record) for number, record in enumerate(records, 1)]
    if not parsed:
        raise UserError(f"rollout.engine.replay.lengths: {path} has no rows")
    by_row: dict[int, list[tuple[int, int]]] = {}
    for place, (tokens, row, index) in enumerate(parsed):
        if row is not None:
            by_row.setdefault(row, []).append((place if index is None else index, tokens))
    return ReplayLengths(
        seed,
        given=tuple(tokens for tokens, _, _ in parsed),
        by_row={row: tuple(tokens for _, tokens in sorted(entries)) for row, entries in by_row.items()},
    )


def _json_lines(path: Path, text: str) -> list[dict[str, object]]:
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"rollout.engine.replay.lengths: {path} line {number} is not JSON: {error}") from error
        records.append(record if isinstance(record, dict) else {"tokens": record})
    return records


def _parse(path: Path, number: int, record: Mapping[str, object]) -> tuple[int, int | None, int | None]:
    def whole(name: str) -> int | None:
        value = record.get(name)
        if value is None or value == "":
            return None
        try:
            return int(str(value))
        except ValueError as error:
            where = f"rollout.engine.replay.lengths: {path} entry {number}"
            raise UserError(f"{where}: {name} is {value!r}; write a whole number") from error

    tokens = whole("tokens")
    if tokens is None or tokens < 1:
        raise UserError(
            f"rollout.engine.replay.lengths: {path} entry {number} has no `tokens` of at least 1: {dict(record)!r}"
        )
    return tokens, whole("row"), whole("index")


@dataclass(frozen=True, slots=True)
class ReplayTokens:
    """Token ids and log-probabilities by position."""

    seed: int
    vocabulary: Sequence[int]
    """Ids that may occur before the end token."""

    def draw(self, row: int, index: int, start: int, end: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Ids and log-probabilities (in (-4, 0), exact in float32) of the positions start..end of a sample's answer."""
        key = mix(self.seed, row, index, 1)
        ids = _mix_positions(key, start, end) % np.uint64(len(self.vocabulary))
        parts = _mix_positions(mix(key, 2), start, end) >> np.uint64(48)
        logprobs = -(parts.astype(np.float64) + 1.0) / 2.0**14
        return tuple(self.vocabulary[i] for i in ids.tolist()), tuple(logprobs.tolist())
