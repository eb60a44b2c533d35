"""Checkpoint folders: which one to resume from, and how a new one becomes complete.

    checkpoints/step_000010/            tensors (torch.distributed.checkpoint), trainer.json, ledger.snapshot,
                                        complete.json (written last: sizes and SHA-256 of all other files)
    checkpoints/step_000020.staging/    being written

Invariants: only a folder whose complete.json verifies is ever loaded, whatever its name; nothing incomplete is removed
before a newer checkpoint is complete; complete ones are removed oldest first, never below `keep`.
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drumroll.errors import CorruptError
from drumroll.weights_files import saying_when_full, sha256_file, sync, write_new

logger = logging.getLogger(__name__)

COMPLETE = "complete.json"
TRAINER = "trainer.json"
LEDGER_SNAPSHOT = "ledger.snapshot"
SCHEMA_VERSION = 1
MAX_JSON_BYTES = 64 << 20
_DIRECTORY = re.compile(r"step_(\d{6,})(\.staging)?\Z")


@dataclass(frozen=True, slots=True)
class TrainerState:
    """trainer.json: where the trainer stands, beside its tensors."""

    job_uid: str
    step: int
    """Steps below this one are in the checkpoint."""
    version: int
    lineage: int
    chain: str
    """Decision chain up to step - 1; empty before the first step."""
    dataset: dict[str, Any]
    """dataset.json of the prepared data that was trained on."""
    learning_rate: float
    """Of the last step that was taken."""
    world_size: int
    rng_state: str
    """torch's random state, hexadecimal."""


_STATE_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "job_uid": str,
    "step": int,
    "version": int,
    "lineage": int,
    "chain": str,
    "dataset": dict,
    "learning_rate": (int, float),
    "world_size": int,
    "rng_state": str,
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    state: TrainerState


class CheckpointStore:
    """The checkpoints of one job. Only rank 0 has one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def newest(self) -> Checkpoint | None:
        """The complete checkpoint of the highest lineage and step. What is newer but incomplete is logged and left.

        Nothing is changed: another job's folder may be asked as well.
        """
        folders = self._scan(load)
        complete = sorted((f.checkpoint for f in folders if f.checkpoint), key=_age)
        best = complete[-1] if complete else None
        for folder in folders:
            if folder.checkpoint is None and (best is None or folder.step >= best.state.step):
                resumed = f"resuming from step {best.state.step}" if best else "there is no other to resume from"
                logger.warning("checkpoint %s is passed over: %s; %s", folder.path.name, folder.reason, resumed)
        return best

    def adopt(self, checkpoint: Checkpoint) -> Checkpoint:
        """Give a checkpoint of this job, whose writer died before it could, its final name."""
        return self._move_in(checkpoint.path, checkpoint.state)

    def at(self, step: int) -> Checkpoint | None:
        """The complete checkpoint of a step, under its final name."""
        path = self.root / f"step_{step:06d}"
        return _Folder.read(step, path, load).checkpoint if path.is_dir() else None

    def stage(self, step: int) -> Path:
        """A new, empty folder to write tensors into. One that a dead writer left under this name goes."""
        with saying_when_full(self.root):
            path = self.root / f"step_{step:06d}.staging"
            if (path / COMPLETE).exists():
                # A dead writer got as far as the name: it may be the newest one there is.
                self._move_in(path, load(path).state)
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            return path

    def finish(self, staging: Path, state: TrainerState, *, ledger_snapshot: Path | None, keep: int) -> Checkpoint:
        """Make what lies in `staging` the checkpoint of `state.step`: synced, summed, read back; then remove old ones.

        Raises:
            CorruptError: it does not read back.
            VolumeFull: no space; the older checkpoints are untouched.
        """
        with saying_when_full(self.root):
            if ledger_snapshot is not None:
                shutil.copyfile(ledger_snapshot, staging / LEDGER_SNAPSHOT)
            (staging / TRAINER).write_text(json.dumps(asdict(state), indent=1, sort_keys=True) + "\n")
            files: dict[str, dict[str, int | str]] = {}
            for path in sorted(staging.iterdir()):
                sync(path)
                files[path.name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
            sync(staging)
            write_new(staging / COMPLETE, json.dumps({"schema_version": SCHEMA_VERSION, "files": files}).encode())
            sync(staging)
            load(staging)
            checkpoint = self._move_in(staging, state)
        self._prune(checkpoint, keep)
        logger.info("checkpoint %s is complete", checkpoint.path.name)
        return checkpoint

    def _move_in(self, path: Path, state: TrainerState) -> Checkpoint:
        """Give a complete checkpoint its name. Until then it would be found under the staging folder's."""
        target = self.root / f"step_{state.step:06d}"
        if path != target:
            shutil.rmtree(target, ignore_errors=True)
            path.rename(target)
            sync(self.root)
        return Checkpoint(target, state)

    def _prune(self, newest: Checkpoint, keep: int) -> None:
        folders = self._scan(load_unverified)
        complete = sorted((f.checkpoint for f in folders if f.checkpoint), key=_age)
        # A checkpoint of step 0 is what the job began with, not one of the newest: `drumroll replay` starts from it.
        surplus = [checkpoint.path for checkpoint in complete[:-keep] if checkpoint.state.step > 0]
        broken = [f.path for f in folders if f.checkpoint is None and f.step <= newest.state.step]
        for path in surplus + broken:
            # complete.json first: half a removal must not look like a checkpoint.
            (path / COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)

    def _scan(self, read: Callable[[Path], Checkpoint]) -> "list[_Folder]":
        return [_Folder.read(step, path, read) for step, path in self._directories()]

    def _directories(self) -> list[tuple[int, Path]]:
        if not self.root.is_dir():
            return []
        matches = [(_DIRECTORY.match(path.name), path) for path in self.root.iterdir()]
        return sorted((int(m[1]), path) for m, path in matches if m and path.is_dir() and not path.is_symlink())


@dataclass(frozen=True, slots=True)
class _Folder:
    step: int
    path: Path
    checkpoint: Checkpoint | None
    reason: str
    """Why there is none."""

    @classmethod
    def read(cls, step: int, path: Path, read: Callable[[Path], Checkpoint]) -> "_Folder":
        try:
            return cls(step, path, read(path), "")
        except CorruptError as error:
            return cls(step, path, None, str(error))


def load(path: Path) -> Checkpoint:
    """Verify a folder, sums included, and read its trainer.json.

    Raises:
        CorruptError: it is incomplete or damaged; the message says what is wrong.
    """
    listed = _listed(path)
    for name, facts in listed.items():
        if sha256_file(path / name) != facts.get("sha256"):
            raise CorruptError(f"{name} has another SHA-256 than was written")
    return Checkpoint(path, _parse_state(_read_json(path / TRAINER)))


def load_unverified(path: Path) -> Checkpoint:
    """The same by names and sizes alone.

    Raises:
        CorruptError: a file is missing or cut off.
    """
    _listed(path)
    return Checkpoint(path, _parse_state(_read_json(path / TRAINER)))


def _age(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.state.lineage, checkpoint.state.step


def _listed(path: Path) -> Mapping[str, Any]:
    listed = _read_json(path / COMPLETE).get("files")
    if not isinstance(listed, dict) or TRAINER not in listed:
        raise CorruptError(f"{COMPLETE} lists no {TRAINER}")
    there = {file.name for file in path.iterdir()} - {COMPLETE}
    if stray := sorted(there - listed.keys()):
        raise CorruptError(f"{', '.join(stray)} does not belong to it")
    for name, facts in listed.items():
        _check_file(path, name, facts)
    return listed


def _check_file(directory: Path, name: str, facts: Any) -> None:
    path = directory / name
    if Path(name).name != name or path.is_symlink():
        raise CorruptError(f"{name!r} is not a plain file of it")
    if not path.is_file():
        raise CorruptError(f"{name} is missing")
    if not isinstance(facts, dict):
        raise CorruptError(f"{COMPLETE} says nothing of {name}")
    size = path.stat().st_size
    if size != facts.get("size"):
        raise CorruptError(f"{name} has {size} bytes of {facts.get('size')}")


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CorruptError(f"{path.name} is too large")
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CorruptError(f"{path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CorruptError(f"{path.name} is not a JSON object")
    return value


def _parse_state(values: Mapping[str, Any]) -> TrainerState:
    if odd := sorted(set(values) ^ _STATE_TYPES.keys()):
        raise CorruptError(f"{TRAINER}: fields {', '.join(odd)} are missing or unknown")
    for name, kind in _STATE_TYPES.items():
        if not isinstance(values[name], kind):
            raise CorruptError(f"{TRAINER}: {name} is {values[name]!r}")
    return TrainerState(**values)
