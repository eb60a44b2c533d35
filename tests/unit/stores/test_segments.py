"""Archived journal segments: whole or not at all, verified when read."""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import CorruptError
from drumroll.segments import read_segment, read_segments, write_segment
from drumroll.testing import eventually_sync

NO_DEADLINE = settings(max_examples=40, deadline=None)
ENTRIES = [(seq, b"entry %d" % seq) for seq in range(1, 21)]


@NO_DEADLINE
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.data())
def test_segments_cut_anywhere_with_overlaps_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("segments")
    entries = list(enumerate(contents, start=1))
    start = 0
    while start < len(entries):
        end = data.draw(st.integers(start + 1, len(entries)))
        overlap = data.draw(st.integers(0, min(2, start)))
        write_segment(directory, entries[start - overlap : end])
        start = end
    assert read_segments(directory) == entries
    assert read_segments(directory, first_seq=len(entries)) == entries[-1:]


@NO_DEADLINE
@given(st.data())
def test_a_damaged_or_cut_segment_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = write_segment(tmp_path_factory.mktemp("segments"), ENTRIES)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[position:]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=path.name):
        read_segments(path.parent)


def test_missing_entries_are_named(tmp_path: Path) -> None:
    assert read_segments(tmp_path) == []
    write_segment(tmp_path, ENTRIES[:3])
    write_segment(tmp_path, ENTRIES[5:8])
    with pytest.raises(CorruptError, match=r"4\.\.5 are missing"):
        read_segments(tmp_path)
    with pytest.raises(CorruptError, match=r"4\.\.5 are missing"):
        read_segments(tmp_path, first_seq=4)
    assert read_segments(tmp_path, first_seq=6) == ENTRIES[5:8]


def test_segments_that_disagree_are_refused(tmp_path: Path) -> None:
    write_segment(tmp_path, ENTRIES[:3])
    write_segment(tmp_path, [(3, b"another"), ENTRIES[3]])
    with pytest.raises(CorruptError, match="entry 3 differs"):
        read_segments(tmp_path)


def test_a_segment_under_another_name_is_refused(tmp_path: Path) -> None:
    path = write_segment(tmp_path, ENTRIES[:3])
    moved = path.rename(tmp_path / "segment_000000000004-000000000006.journal")
    with pytest.raises(CorruptError, match="not the segment that its name says"):
        read_segment(moved)


def test_entries_that_do_not_fill_the_segment_are_refused(tmp_path: Path) -> None:
    path = write_segment(tmp_path, ENTRIES[:3])
    other = write_segment(tmp_path, ENTRIES[:4])
    body = path.read_bytes()[:-32]
    cut = body[:16] + other.read_bytes()[16:24] + body[24:]
    other.write_bytes(cut + hashlib.sha256(cut).digest())
    with pytest.raises(CorruptError, match="do not fill it"):
        read_segment(other)


@pytest.mark.parametrize("entries", [[], [(1, b""), (3, b"")], [(2, b""), (1, b"")]])
def test_only_consecutive_entries_make_a_segment(tmp_path: Path, entries: list[tuple[int, bytes]]) -> None:
    with pytest.raises(ValueError, match="consecutive"):
        write_segment(tmp_path, entries)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "segment_000000000001-000000000020.journal").mkdir()
    with pytest.raises(OSError):
        write_segment(tmp_path, ENTRIES)
    assert [path.name for path in tmp_path.iterdir()] == ["segment_000000000001-000000000020.journal"]


WRITER = """
import sys
from pathlib import Path
from drumroll.segments import write_segment
for start in range(1, 1_000_000, 5):
    write_segment(Path(sys.argv[1]), [(seq, b"x" * 20_000) for seq in range(start, start + 5)])
"""


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_writer_killed_at_any_moment_leaves_whole_segments_alone(tmp_path: Path, after: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    try:
        eventually_sync(lambda: len(list(tmp_path.glob("*.journal"))) >= after, 30.0, "segments")
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    entries = read_segments(tmp_path)
    assert [seq for seq, _ in entries] == list(range(1, len(entries) + 1))
    assert len(entries) >= 5 * after
    assert all(data == b"x" * 20_000 for _, data in entries)
