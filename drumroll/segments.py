"""Archived journal segments: files that outlive the store, written whole or not at all.

    "DRJRNL1\\n" | first seq, last seq (u64) | per entry: length (u32), bytes | SHA-256 of all before it

Numbers are little-endian. A file is written under another name, synced and renamed; reading believes the sum alone.
"""

import hashlib
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from drumroll.errors import CorruptError

_MAGIC = b"DRJRNL1\n"
_HEADER = struct.Struct("<8sQQ")
_LENGTH = struct.Struct("<I")
_NAME = re.compile(r"^segment_(\d+)-(\d+)\.journal$")


def write_segment(directory: Path, entries: Sequence[tuple[int, bytes]]) -> Path:
    """Write entries of consecutive sequence numbers; the path of the file. Writing the same again changes nothing.

    Raises:
        ValueError: no entries, or not consecutive.
        OSError: the disk is full or the directory cannot be written.
    """
    if not entries or [seq for seq, _ in entries] != list(range(entries[0][0], entries[0][0] + len(entries))):
        raise ValueError("a segment holds at least one entry, with consecutive numbers")
    first, last = entries[0][0], entries[-1][0]
    body = b"".join(
        [_HEADER.pack(_MAGIC, first, last), *(part for _, data in entries for part in (_LENGTH.pack(len(data)), data))]
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"segment_{first:012d}-{last:012d}.journal"
    replace_file(path, body + hashlib.sha256(body).digest())
    return path


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`, so that after any crash the old file or the new one is there, whole.

    Raises:
        OSError: as the file system says; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_segments(directory: Path, *, first_seq: int = 1) -> list[tuple[int, bytes]]:
    """All archived entries from `first_seq` on, in order. Segments may overlap where they are equal.

    Raises:
        CorruptError: a segment is damaged, entries are missing, or two segments disagree.
    """
    entries: dict[int, bytes] = {}
    for path in sorted(directory.glob("segment_*.journal")):
        for seq, data in read_segment(path):
            if entries.setdefault(seq, data) != data:
                raise CorruptError(f"{path.name}: journal entry {seq} differs from that of another segment")
    wanted = sorted(seq for seq in entries if seq >= first_seq)
    for expected, seq in enumerate(wanted, start=first_seq):
        if seq != expected:
            raise CorruptError(f"{directory}: journal entries {expected}..{seq - 1} are missing")
    return [(seq, entries[seq]) for seq in wanted]


def read_segment(path: Path) -> list[tuple[int, bytes]]:
    """The entries of one file.

    Raises:
        CorruptError: damaged, cut short, or under a wrong name.
    """
    content = path.read_bytes()
    body, trailer = content[:-32], content[-32:]
    if len(body) < _HEADER.size or hashlib.sha256(body).digest() != trailer:
        raise CorruptError(f"{path.name}: damaged or cut short (its SHA-256 does not fit)")
    magic, first, last = _HEADER.unpack_from(body)
    name = _NAME.match(path.name)
    if magic != _MAGIC or name is None or (int(name[1]), int(name[2])) != (first, last):
        raise CorruptError(f"{path.name}: not the segment that its name says")
    return _split(path, body, first, last)


def _split(path: Path, body: bytes, first: int, last: int) -> list[tuple[int, bytes]]:
    entries: list[tuple[int, bytes]] = []
    position = _HEADER.size
    while position + _LENGTH.size <= len(body):
        (length,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        entries.append((first + len(entries), body[position : position + length]))
        position += length
    if position != len(body) or len(entries) != last - first + 1:
        raise CorruptError(f"{path.name}: its entries do not fill it")
    return entries
