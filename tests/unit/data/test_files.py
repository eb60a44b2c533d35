"""Reading single files."""

import datetime
import decimal
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.data.files import plain, read_file
from drumroll.errors import DataError

CASES = Path(__file__).parent / "cases"


def test_d4_mark_crlf_blank_line_and_missing_newline_do_no_harm() -> None:
    rows = read_file(CASES / "D4_bom_crlf.jsonl")
    assert len(rows) == 5
    assert [set(row) for row in rows] == [{"prompt", "label"}] * 5
    assert rows[-1] == {"prompt": "4+1?", "label": "5"}
    assert not any(value.endswith("\r") for row in rows for value in row.values())


def test_d6_an_empty_file_has_its_own_message() -> None:
    with pytest.raises(DataError, match="is empty: it has 0 bytes"):
        read_file(CASES / "D6_empty.jsonl")


def test_d8_parquet_rows_have_their_own_members_only(write_parquet: Callable[..., Path]) -> None:
    rows = [json.loads(line) for line in (CASES / "D8_uneven_metadata.jsonl").read_text().splitlines()]
    assert read_file(write_parquet(rows[:3])) == rows[:3]


def test_jsonl_keeps_each_rows_own_keys() -> None:
    """D8"""
    metadata = [row["metadata"] for row in read_file(CASES / "D8_uneven_metadata.jsonl")]
    assert metadata == [{"city": "Oslo"}, {"n": 3, "hints": ["a", "b"]}, {}, '{"city": "Bergen"}']


@pytest.mark.parametrize("lines", ["\n\n", "\ufeff", " \r\n"])
def test_a_file_of_blank_lines_has_no_rows(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines, encoding="utf-8", newline="")
    with pytest.raises(DataError, match="it has no rows"):
        read_file(path)


def test_a_parquet_file_without_rows_is_empty(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="it has no rows"):
        read_file(tmp_path / "rows.parquet")


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert read_file(path) == [{"prompt": "a\u2028b"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"prompt\n1\n", "data files end in .parquet, .jsonl"),
        ("rows.jsonl", b'{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"),
        ("rows.jsonl", b'{"prompt": "a"}\n\n[1]\n', "line 3: a row is a JSON object, not list"),
        ("rows.jsonl", b'{"prompt": "\xff"}\n', r"is not UTF-8 text \(byte 12\)"),
        ("rows.json", b"[1]", "row 1: a row is a JSON object, not int"),
        ("rows.json", b"[1", "its array: not JSON"),
        ("rows.parquet", b"PAR1 nonsense", "cannot be read as parquet"),
        ("rows.arrow", b"nonsense, too", "cannot be read as arrow"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_says_where_paths_begin(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; paths are relative to the job file"):
        read_file(tmp_path / "rows.jsonl")


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    loop = tmp_path / "rows.jsonl"
    os.symlink(loop, loop)
    with pytest.raises(DataError, match="cannot be read: Too many levels"):
        read_file(loop)


def test_max_rows_cuts_every_kind(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [{"prompt": str(index)} for index in range(5)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    write_jsonl(rows)
    for name in ("rows.json", "rows.parquet", "file.arrow", "stream.arrow", "rows.jsonl"):
        assert read_file(tmp_path / name, max_rows=3) == rows[:3]
        assert read_file(tmp_path / name) == rows


def test_repeated_columns_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="more than one column named prompt"):
        read_file(tmp_path / "rows.parquet")


def test_map_columns_become_mappings(tmp_path: Path) -> None:
    maps = pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"metadata": maps}), tmp_path / "rows.parquet")
    assert read_file(tmp_path / "rows.parquet") == [{"metadata": {"a": 1}}]


def test_values_that_json_lacks_are_written_as_text() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5)
    values = [moment, moment.date(), moment.time(), datetime.timedelta(minutes=1), b"\x00\xff", decimal.Decimal("1.10")]
    assert plain(values) == ["2026-01-02T03:04:05", "2026-01-02", "03:04:05", 60.0, "AP8=", "1.10"]


_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.fixed_dictionaries({"prompt": _TEXT, "tags": st.lists(_TEXT, max_size=2)}), min_size=1, max_size=5))
def test_all_formats_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("formats")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\r\n" for row in rows), newline="")
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    assert read_file(folder / "rows.jsonl") == read_file(folder / "rows.parquet") == rows


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long.jsonl", '{"answer": ' + "9" * 5000 + "}"),
        ("deep.jsonl", '{"answer": ' + "[" * 100_000 + "}"),
        ("open.jsonl", '{"answer": "'),
        ("word.jsonl", "answer"),
        ("one.json", '{\n "answer": 1\n}'),
        ("many.json", '[{"answer": 1},'),
    ],
)
def test_whatever_is_no_json_is_an_error_of_the_data(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="not JSON") as caught:
        read_file(tmp_path / name)
    assert ("one array of objects, or one object a line" in str(caught.value)) == name.endswith(".json")
