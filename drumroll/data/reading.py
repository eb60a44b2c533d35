"""From a job's `data.<name>.path` to rows: a file, a Hugging Face data set directory, or a hub address.

Directories are taken as the hub lays them out (`data/train-00000-of-00001.parquet`, `main/test-…`, `train.jsonl`,
`train/…`) and as `datasets.save_to_disk` writes them. Which files make up a split is a pure function of their names.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from drumroll.data.files import SUFFIXES, Row, Rows, read_file
from drumroll.data.hub import HUB_PREFIX, fetch
from drumroll.errors import DataError


def read_rows(path: str, *, source_dir: Path, split: str, max_rows: int | None = None) -> Rows:
    """Read `path` (relative ones from `source_dir`); `split` matters for directories and hub addresses only.

    Raises:
        DataError: nothing can be read there; the message says why and what to write instead.
    """
    if path.startswith(HUB_PREFIX):
        return _join(path, split_files(fetch(path), split), max_rows)
    place = source_dir / Path(path).expanduser()
    files = split_files(place, split) if place.is_dir() else [place]
    return _join(str(place), files, max_rows)


def _join(origin: str, files: list[Path], max_rows: int | None) -> Rows:
    rows: list[Row] = []
    for file in files:
        left = None if max_rows is None else max_rows - len(rows)
        if left is not None and left <= 0:
            break
        rows.extend(read_file(file, max_rows=left))
    columns = dict.fromkeys(name for row in rows for name in row)
    return Rows(origin, tuple(columns), rows)


def split_files(directory: Path, split: str) -> list[Path]:
    """The data files of one split, in order.

    Raises:
        DataError: the directory has no such split, or several configurations of it.
    """
    if (directory / "dataset_dict.json").is_file():
        saved = sorted(path.parent.name for path in directory.glob("*/state.json"))
        if split not in saved:
            raise DataError(f"{directory} has no split {split!r}; it has {_listed(saved)}: set `split` to one of them")
        return _saved_files(directory / split)
    if (directory / "state.json").is_file():
        return _saved_files(directory)
    names = sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    )
    return [directory / name for name in choose_files(names, split, directory=str(directory))]


def _saved_files(directory: Path) -> list[Path]:
    try:
        state = json.loads((directory / "state.json").read_text())
        return [directory / Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{directory / 'state.json'} is not what datasets.save_to_disk writes: {error!r}") from error


def choose_files(names: Iterable[str], split: str, *, directory: str) -> list[str]:
    """Which of these relative file names make up `split`. Pure.

    A file belongs to the split that its name begins with (`train-00000-of-00004.parquet`, `train.jsonl`) or that one
    of its folders is named after (`default/train/0000.parquet`); names like `data.jsonl` belong to none and count as
    the only split of a directory that has no others.

    Raises:
        DataError: as `split_files`.
    """
    data = [name for name in names if _is_data(name)]
    if not data:
        raise DataError(f"{directory} holds no data files ({', '.join(SUFFIXES)}); give a file or another directory")
    by_split: dict[str, list[str]] = {}
    for name in data:
        by_split.setdefault(_split_of(name), []).append(name)
    chosen = by_split.get(split) or (by_split.get("") if set(by_split) == {""} else None)
    if chosen is None:
        have = _listed(sorted(name for name in by_split if name))
        raise DataError(f"{directory} has no split {split!r}; it has {have}: set `split` to one of them")
    configurations = sorted({_configuration_of(name) for name in chosen})
    if len(configurations) > 1:
        raise DataError(
            f"{directory} has several configurations with a split {split!r}: {_listed(configurations)}; "
            f"write the path of one of them, such as {directory}/{configurations[0]}"
        )
    return chosen


_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
_METADATA = re.compile(r"^(dataset_infos?|dataset_dict|state|config|package)\.json$")


def _is_data(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and not _METADATA.match(path.name)


def _split_of(name: str) -> str:
    path = PurePosixPath(name)
    sharded = re.match(r"^(?:.*-)?(\w+)-\d{5}-of-\d{5}(?:-[0-9a-f]{16})?$", path.stem)
    if sharded:
        return sharded.group(1)
    head = re.split(r"[-_.]", path.stem)[0]
    if path.stem in _SPLITS or head in _SPLITS:
        return head
    folders = [folder for folder in path.parts[:-1] if folder in _SPLITS]
    return folders[-1] if folders else ""


def _configuration_of(name: str) -> str:
    folders = [folder for folder in PurePosixPath(name).parts[:-1] if folder not in _SPLITS]
    return "/".join(folders) if folders else "."


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "none"
