"""Which files of a model directory hold its weights, and which go with every published version.

Where there is an index (model.safetensors.index.json), it alone says which shards belong to the model: a shard it names
must be there and must hold what it says, a file it does not name is never read.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from drumroll.errors import CorruptError, UserError
from drumroll.safetensors_header import TensorSlice, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)


def model_files(directory: Path) -> list[str]:
    """Names of the safetensors that make up the model, in order.

    Raises:
        UserError: there are none, or index and shards disagree; the message names the file.
    """
    try:
        return list(tensors_by_file(directory))
    except CorruptError as error:
        raise UserError(f"model directory {directory}: {error}") from error


def tensors_by_file(directory: Path) -> dict[str, list[TensorSlice]]:
    """File name to the tensors in it, for all files of the model.

    Raises:
        CorruptError: there are no weights, or index and shards disagree.
    """
    index = directory / INDEX
    if not index.is_file():
        if not (directory / SINGLE).is_file():
            raise CorruptError(f"neither {SINGLE} nor {INDEX} is there; only safetensors are read")
        return {SINGLE: read_header(directory / SINGLE)}
    weight_map = _weight_map(index)
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise CorruptError(f"{INDEX} names {', '.join(missing)}, which is missing")
    found = {name: read_header(directory / name) for name in names}
    held = {tensor.name: name for name, tensors in found.items() for tensor in tensors}
    if sum(map(len, found.values())) != len(held):
        raise CorruptError(f"a tensor is in more than one of the files that {INDEX} names")
    for tensor in sorted(held.keys() ^ weight_map.keys()):
        where = f"{INDEX} names it in {weight_map[tensor]}" if tensor in weight_map else f"it is in {held[tensor]} only"
        raise CorruptError(f"{INDEX} and its files disagree about tensor {tensor!r}: {where}")
    for tensor, name in weight_map.items():
        if held[tensor] != name:
            raise CorruptError(f"{INDEX} says that tensor {tensor!r} is in {name}, it is in {held[tensor]}")
    return found


def copy_companions(model_dir: Path, target: Path, *, dtype: str) -> list[str]:
    """Copy config and tokenizer files, so that `target` loads as a model; config.json will say `dtype`.

    Files that are in `target` already stay as they are. Returns the names of what was copied.
    """
    copied = []
    for name in COMPANIONS:
        source = model_dir / name
        if not source.is_file() or (target / name).exists():
            continue
        if name == "config.json":
            (target / name).write_text(_with_dtype(source, dtype))
        else:
            shutil.copyfile(source, target / name)
        copied.append(name)
    return copied


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        if not weight_map:
            raise ValueError("weight_map is empty")
        for tensor, name in weight_map.items():
            # A plain name: an index must not reach outside of its directory.
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise ValueError(f"tensor {tensor!r} is in {name!r}, which is not the plain name of a safetensors file")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"{INDEX} cannot be read: {error}") from error
    else:
        mapping: Mapping[str, str] = weight_map
        return mapping


def _with_dtype(config_file: Path, dtype: str) -> str:
    try:
        config = json.loads(config_file.read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = dtype
        for part in config.values():
            if isinstance(part, dict) and "dtype" in part:
                part["dtype"] = dtype
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{config_file} is not a model's configuration: {error}") from error
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
