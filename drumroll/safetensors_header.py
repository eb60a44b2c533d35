"""Reads what a safetensors file says about itself, and the bytes of its tensors, without torch.

The header is untrusted: its size is bounded before it is read, and every tensor must lie inside the file, with as many
bytes as its shape and dtype ask for.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumroll.errors import CorruptError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
CHUNK_BYTES = 1 << 20

_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Where a tensor's bytes are."""

    name: str
    dtype: str
    """Safetensors' name, such as BF16."""
    shape: tuple[int, ...]
    offset: int
    """First byte, from the start of the file."""
    size: int
    """In bytes."""


def read_header(path: Path) -> list[TensorSlice]:
    """The tensors of a safetensors file, by name.

    Raises:
        CorruptError: the file is not a whole safetensors file.
    """
    file_size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if file_size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, file_size - 8):
            raise CorruptError(f"{path.name} is not a safetensors file: {file_size} bytes, header of {length}")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        items = sorted((str(name), entry) for name, entry in header.items() if name != "__metadata__")
        slices = [_slice(name, entry, start=8 + length) for name, entry in items]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"the header of {path.name} cannot be read: {error}") from error
    _check_layout(path.name, slices, start=8 + length, end=file_size)
    return slices


def iter_bytes(path: Path, tensor: TensorSlice) -> Iterator[bytes]:
    """The bytes of one tensor, in chunks.

    Raises:
        CorruptError: the file has become shorter.
    """
    with path.open("rb") as file:
        file.seek(tensor.offset)
        left = tensor.size
        while left:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise CorruptError(f"{path.name} ends inside of {tensor.name!r}")
            left -= len(chunk)
            yield chunk


def _slice(name: str, entry: dict[str, Any], *, start: int) -> TensorSlice:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"{name!r} has offsets or a shape that are not whole numbers")
    bits = _BITS.get(entry["dtype"])
    if bits is None:
        raise ValueError(f"{name!r} has the unknown dtype {entry['dtype']!r}")
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"{name!r} has {end - begin} bytes, which is not {list(shape)} of {entry['dtype']}")
    return TensorSlice(name, entry["dtype"], shape, start + begin, end - begin)


def _check_layout(file_name: str, slices: list[TensorSlice], *, start: int, end: int) -> None:
    """Tensors fill the file without holes or overlaps, so no byte of it is unaccounted for."""
    position = start
    for tensor in sorted(slices, key=lambda tensor: (tensor.offset, tensor.size)):
        if tensor.offset != position:
            raise CorruptError(f"{file_name}: {tensor.name!r} starts at byte {tensor.offset}, not at {position}")
        position += tensor.size
    if position != end:
        raise CorruptError(f"{file_name} has {end} bytes, its tensors end at {position}")
