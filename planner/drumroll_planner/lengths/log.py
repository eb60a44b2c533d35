"""The log of answers that a job's length models learn from: records of one size, appended as groups end.

    magic 8 bytes | group size u32 | records: row u32, step u32, reward f32 (NaN: unknown), lengths u32 * group size

A length's top bit says that the answer was cut, 0 that there is none. A record that a crash cut short is left out.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from drumroll.errors import CorruptError
from drumroll_planner.lengths.answers import Groups

MAGIC = b"DRLENGT1"
_CUT = 1 << 31
_HEAD = len(MAGIC) + 4
_MOST_GROUPS = 512


def record_type(group_size: int) -> np.dtype[np.void]:
    """Layout of a record."""
    return np.dtype([("row", "<u4"), ("step", "<u4"), ("reward", "<f4"), ("lengths", "<u4", (group_size,))])


def head(group_size: int) -> bytes:
    """The beginning of a log."""
    return MAGIC + group_size.to_bytes(4, "little")


def encode(row: int, step: int, *, reward: float, answers: Sequence[tuple[int, bool]], group_size: int) -> bytes:
    """One group: (length, whether it was cut) of its answers, in the order of their samples."""
    record = np.zeros(1, record_type(group_size))
    record["row"], record["step"], record["reward"] = row, step, reward
    values = [min(length, _CUT - 1) | (_CUT if cut else 0) for length, cut in answers[:group_size]]
    record["lengths"][0, : len(values)] = values
    return record.tobytes()


def decode(data: bytes) -> npt.NDArray[np.void]:
    """All whole records of a log.

    Raises:
        CorruptError: not a log of answers.
    """
    if len(data) < _HEAD or data[: len(MAGIC)] != MAGIC:
        raise CorruptError("this is not a log of answers")
    kind = record_type(int.from_bytes(data[len(MAGIC) : _HEAD], "little"))
    return np.frombuffer(data, kind, (len(data) - _HEAD) // kind.itemsize, _HEAD)


def batches(records: npt.NDArray[np.void], *, num_rows: int) -> Iterator[Groups]:
    """Groups by step, in an order that does not depend on the order of the records; rows beyond `num_rows` left out.

    A group that a step was given twice, as after a rewind, counts once.
    """
    records = _distinct(records[records["row"] < num_rows])
    starts = np.flatnonzero(np.diff(records["step"].astype(np.int64), prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(records)][: len(starts)], strict=True):
        for first in range(start, end, _MOST_GROUPS):
            yield groups_of(records[first : min(end, first + _MOST_GROUPS)])


def _distinct(records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Records by step, row and content, equal ones once (by their bytes: an unknown reward equals itself)."""
    columns = [records["lengths"][:, place] for place in range(records["lengths"].shape[1])]
    records = records[np.lexsort((records["reward"], *columns, records["row"], records["step"]))]
    if len(records) < 2:
        return records
    raw = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)
    fresh = np.append(True, (raw[1:] != raw[:-1]).any(axis=1))
    return np.asarray(records[fresh])


def groups_of(records: npt.NDArray[np.void]) -> Groups:
    """Records as groups."""
    values = records["lengths"].astype(np.int64)
    lengths = np.where(values == 0, np.nan, np.maximum(values & (_CUT - 1), 1)).astype(np.float32)
    return Groups(records["row"].astype(np.int64), lengths, (values & _CUT) > 0, records["reward"].astype(np.float32))
