"""Parameters and optimizer state as torch.distributed.checkpoint writes them: in shards, for any world size.

torch's own reader unpickles the folder's index, and objects in it, without restraint. Here an index may name nothing
but the classes it is made of, tensors are loaded as weights only, and objects are refused: a checkpoint is data.
"""

import hashlib
import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.futures import Future

from drumroll.errors import CorruptError
from drumroll_trainer.learner.model import PolicyModel
from drumroll_trainer.learner.optimizer import MOMENTS

INDEX = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
# Nothing here calls or reaches anything else; in particular no getattr.
_ALLOWED = {
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("torch", "float32"),
    ("pathlib", "PosixPath"),
}


def tensors_of(policy: PolicyModel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All that a checkpoint holds, by name: parameters, and the moments and step count of each."""
    state: dict[str, torch.Tensor] = {}
    for name, parameter in policy.own_parameters():
        state[f"model.{name}"] = parameter.detach()
        if parameter.requires_grad:
            for moment in MOMENTS:
                state[f"optimizer.{name}.{moment}"] = optimizer.state[parameter][moment]
    return state


def save(directory: Path, state: dict[str, torch.Tensor]) -> None:
    """Write `state` into an empty folder; a collective call. Files are synced."""
    writer = FileSystemWriter(directory, single_file_per_rank=True, sync_files=True)
    with _alone_is_fine():
        save_sharded(state, storage_writer=writer)


def load(directory: Path, state: dict[str, torch.Tensor]) -> None:
    """Fill the tensors of `state` in place; a collective call.

    Raises:
        CorruptError: a file is not what `save` writes, or does not fit `state`; the message names the file.
    """
    try:
        with _alone_is_fine():
            load_sharded(state, storage_reader=SafeReader(directory))
    except CheckpointException as error:
        reasons = sorted({str(failure[0]) for failure in error.failures.values()})
        raise CorruptError(f"checkpoint {directory.name} is refused: {'; '.join(reasons)}") from error
    except (CorruptError, RuntimeError, KeyError, ValueError) as error:
        raise CorruptError(f"checkpoint {directory.name} is refused: {error}") from error


def digest(state: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names and bytes in name order; of whole tensors, so for one rank."""
    result = hashlib.sha256()
    for name in sorted(state):
        raw: Any = state[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        result.update(name.encode() + b"\0")
        result.update(raw)
    return result.hexdigest()


class SafeReader(FileSystemReader):
    """Reads tensors alone, and says which file it refuses."""

    def read_metadata(self, *arguments: Any, **keywords: Any) -> Metadata:
        path = Path(str(self.path)) / INDEX
        try:
            metadata = _IndexUnpickler(io.BytesIO(path.read_bytes())).load()
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError, ValueError) as error:
            raise CorruptError(f"{INDEX}: {error}") from error
        if not isinstance(metadata, Metadata):
            raise CorruptError(f"{INDEX} is not an index of tensors")
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise CorruptError(f"{INDEX}: {name!r} is not a tensor")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in by_file.items():
            if Path(name).name != name:
                raise CorruptError(f"{INDEX} points to {name!r}, outside of the checkpoint")
            try:
                super().read_data(LoadPlan(items), planner)
            except (OSError, EOFError, pickle.UnpicklingError, RuntimeError, AssertionError, ValueError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise CorruptError(f"{name} does not hold the tensors that were saved: {reason}") from error
        done: Future[None] = Future()
        done.set_result(None)
        return done


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no index of tensors needs")
        return super().find_class(module, name)


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """torch warns where there is no process group; one process is a normal case here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"torch\.distributed is ")
        yield
