"""Plans as files: small, streamable, named by their content.

    magic 8 bytes | length of the header, u32 little endian | header, JSON | rows | tokens | SHA-256 of all before

Columns are little endian, u32 (rows u64 only where a data set has more than 2^32 prompts): 8 bytes a ticket. The name
holds the digest of the order, which is what the journal holds, so that a restarted scheduler finds the plan that it
journaled.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drumroll.errors import CorruptError
from drumroll_planner.asp.explanation import Explanation
from drumroll_planner.asp.planner import AspPlan
from drumroll_planner.plan import plan_digest

MAGIC = b"DRUMPLN1"
_CHECK = 32


def file_name(digest: str) -> str:
    """Of the plan whose order has this digest."""
    return f"plan-{digest}.plan"


def encode(plan: AspPlan) -> bytes:
    """The file's bytes; equal plans give equal bytes."""
    kind = "<u8" if len(plan.rows) and int(plan.rows.max()) >= 1 << 32 else "<u4"
    header = {
        "epoch": plan.epoch,
        "planner": plan.planner,
        "digest": plan.digest,
        "num_tickets": len(plan),
        "rows": kind,
        "explanation": plan.explanation.to_dict(),
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    front = MAGIC + struct.pack("<I", len(text)) + text
    body: bytes = front + plan.rows.astype(kind).tobytes() + plan.tokens.astype("<u4").tobytes()
    return body + hashlib.sha256(body).digest()


def decode(data: bytes, *, name: str = "the plan") -> AspPlan:
    """The plan.

    Raises:
        CorruptError: damaged, or not a plan.
    """
    if len(data) < len(MAGIC) + 4 + _CHECK or data[: len(MAGIC)] != MAGIC:
        raise CorruptError(f"{name} is not a plan file")
    if hashlib.sha256(memoryview(data)[:-_CHECK]).digest() != data[-_CHECK:]:
        raise CorruptError(f"{name} is damaged: its checksum does not hold")
    header, start = _header(data[: len(MAGIC) + 4], data)
    count, kind = header["num_tickets"], np.dtype(header["rows"])
    rows = np.frombuffer(data, kind, count, start).astype(np.int64)
    tokens = np.frombuffer(data, "<u4", count, start + count * kind.itemsize).astype(np.int32)
    if plan_digest(rows) != header["digest"]:
        raise CorruptError(f"{name} is damaged: its order has another digest than it says")
    explanation = Explanation.from_dict(header["explanation"])
    return AspPlan(header["epoch"], header["planner"], rows, tokens, header["digest"], explanation)


def _header(front: bytes, data: bytes) -> tuple[dict[str, Any], int]:
    (length,) = struct.unpack_from("<I", front, len(MAGIC))
    start = len(MAGIC) + 4
    return json.loads(data[start : start + length]), start + length


def write(plan: AspPlan, path: Path) -> Path:
    """Write a plan to a file, or under its own name into a directory; it appears whole or not at all.

    Raises:
        OSError: the place cannot be written to.
    """
    if path.is_dir():
        path = path / file_name(plan.digest)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    with temporary.open("wb") as file:
        file.write(encode(plan))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def read(path: Path) -> AspPlan:
    """Read a plan.

    Raises:
        OSError: it cannot be read.
        CorruptError: damaged, or not a plan.
    """
    return decode(path.read_bytes(), name=str(path))


def stream(path: Path, *, tickets: int = 4096) -> Iterator[tuple[int, list[int], list[int]]]:
    """(first ordinal, rows, predicted tokens) of a file, so many tickets at a time; the checksum is left to `read`.

    Raises:
        OSError: it cannot be read.
        CorruptError: not a plan.
    """
    with path.open("rb") as file:
        front = file.read(len(MAGIC) + 4)
        if front[: len(MAGIC)] != MAGIC or len(front) < len(MAGIC) + 4:
            raise CorruptError(f"{path} is not a plan file")
        (length,) = struct.unpack_from("<I", front, len(MAGIC))
        header, start = json.loads(file.read(length)), len(front) + length
        count, kind = header["num_tickets"], np.dtype(header["rows"])
        for first in range(0, count, tickets):
            number = min(tickets, count - first)
            file.seek(start + first * kind.itemsize)
            rows = np.frombuffer(file.read(number * kind.itemsize), kind)
            file.seek(start + count * kind.itemsize + first * 4)
            yield first, rows.tolist(), np.frombuffer(file.read(number * 4), "<u4").tolist()
