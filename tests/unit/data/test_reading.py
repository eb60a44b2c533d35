"""Directories and hub addresses."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from drumroll.data.hub import parse_address
from drumroll.data.reading import choose_files, read_rows
from drumroll.errors import DataError

ROWS = [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize(
    ("names", "split", "chosen"),
    [
        (["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"], "train", [1]),
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"], "train", [0, 1]),
        (["main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"], "test", [1]),
        (["train.jsonl", "test.jsonl", "dataset_infos.json", ".cache/train.jsonl"], "train", [0]),
        (["train/0000.parquet", "validation/0000.parquet"], "validation", [1]),
        (["default/train/0000.parquet", "default/train/0001.parquet"], "train", [0, 1]),
        (["questions.jsonl"], "train", [0]),
        (["my_set-00000-of-00001.parquet"], "my_set", [0]),
        (["train_prefs-00000-of-00001.parquet", "train-00000-of-00001.parquet"], "train", [1]),
        (["data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", "data/test-00000-of-00001.parquet"], "train", [0]),
        (
            ["train_sft-00000-of-00001-a3ecf92756993583.parquet", "train_gen-00000-of-00001-a3ecf92756993583.parquet"],
            "train_gen",
            [1],
        ),
    ],
)
def test_a_split_is_found_by_names_alone(names: list[str], split: str, chosen: list[int]) -> None:
    assert choose_files(names, split, directory="d") == [names[index] for index in chosen]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["readme.md", "_private/train.jsonl"][1:], "holds no data files"),
        (["test.jsonl", "dev.jsonl"], "no split 'train'; it has 'dev', 'test': set `split`"),
        (
            ["main/train.jsonl", "socratic/train.jsonl"],
            "several configurations .* 'main', 'socratic'; .* such as d/main",
        ),
    ],
)
def test_a_directory_without_the_one_split_says_what_it_has(names: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        choose_files(names, "train", directory="d")


def test_shards_are_read_in_order_and_paths_begin_at_the_job_file(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    write_jsonl(ROWS[:1], "set/data/train-00000-of-00002.jsonl")
    write_jsonl(ROWS[1:], "set/data/train-00001-of-00002.jsonl")
    read = read_rows("set", source_dir=tmp_path, split="train")
    assert read.rows == ROWS
    assert read.columns == ("prompt",)
    assert read_rows("set", source_dir=tmp_path, split="train", max_rows=1).rows == ROWS[:1]


def _save_to_disk(folder: Path) -> None:
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(ROWS)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    _save_to_disk(tmp_path / "saved")
    assert read_rows("saved", source_dir=tmp_path, split="train").rows == ROWS


def test_a_saved_dictionary_of_data_sets_is_read_by_split(tmp_path: Path) -> None:
    _save_to_disk(tmp_path / "saved" / "train")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert read_rows("saved", source_dir=tmp_path, split="train").rows == ROWS
    with pytest.raises(DataError, match="no split 'test'; it has 'train'"):
        read_rows("saved", source_dir=tmp_path, split="test")


def test_a_broken_state_file_is_named(tmp_path: Path) -> None:
    _save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json is not what datasets\.save_to_disk writes"):
        read_rows("saved", source_dir=tmp_path, split="train")


def test_hub_addresses_name_owner_set_and_folder() -> None:
    assert parse_address("hf://openai/gsm8k") == ("openai/gsm8k", "")
    assert parse_address("hf://datasets/openai/gsm8k/main") == ("openai/gsm8k", "main")
    for wrong in ("hf://gsm8k", "hf://a/b/../c"):
        with pytest.raises(DataError, match="is not hf://owner/name"):
            parse_address(wrong)


def test_an_unreachable_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"hf://drumroll-tests/none cannot be fetched: .*write its local path"):
        read_rows("hf://drumroll-tests/none", source_dir=tmp_path, split="train")


def test_a_hub_set_is_read_from_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    write_jsonl(ROWS, "snapshot/main/train.jsonl")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path / "snapshot"))
    assert read_rows("hf://owner/name/main", source_dir=tmp_path, split="train").rows == ROWS
    with pytest.raises(DataError, match="has no folder 'other'"):
        read_rows("hf://owner/name/other", source_dir=tmp_path, split="train")


def test_the_hub_needs_its_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match="needs the package huggingface_hub"):
        read_rows("hf://owner/name", source_dir=tmp_path, split="train")
