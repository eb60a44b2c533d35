"""The weight store: numbered, immutable weight versions on a volume that trainer and replicas share.

    <root>/weight_v000042/            safetensors, config and tokenizer files, manifest.json (written last)
    <root>/.stage-000042-<nonce>/     a version being written; never read
    <root>/LATEST                     for people

Invariants: a version is what its manifest proves and nothing else, so no step relies on a rename being atomic. A
version that verifies is never changed, only deleted, manifest first. Of two writers of one version the first wins.
"""

import contextlib
import errno
import hashlib
import logging
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from drumroll.errors import CorruptError, WeightsNotVisible
from drumroll.weights_contents import check_files, check_tensors, describe
from drumroll.weights_files import (
    only_writer,
    read_bounded,
    saying_when_full,
    sync,
    write_new,
)
from drumroll.weights_manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    LogitProbe,
    WeightManifest,
    is_complete_json,
)

logger = logging.getLogger(__name__)

_VERSION_DIR = re.compile(r"weight_v(\d{6,})\Z")
_STAGE_DIR = re.compile(r"\.stage-\d+-[0-9a-f]+\Z")
_NOT_A_FILE = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
LOCK_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A version that is complete on the volume."""

    version: int
    manifest_sha256: str
    weights_digest: str
    path: Path
    existed: bool = False
    """publish() found the version there already: this is that one, and what was staged is gone."""
    diverged: bool = False
    """It existed with other tensors than those staged: a replay that did not repeat bit for bit."""


class WeightStore:
    """One job's weight versions below `root`; every process has its own object."""

    def __init__(self, root: Path, job_uid: str, *, before: Callable[[str], None] | None = None) -> None:
        """`before` is called with a name before each change of the volume: tests end the writer there."""
        self.root = root
        self.job_uid = job_uid
        self._before = before or (lambda operation: None)

    # ---- writing

    def stage(self, version: int) -> Path:
        """A new, empty directory to write a version's safetensors, config and tokenizer files into."""
        with saying_when_full(self.root):
            path = self.root / f".stage-{version:06d}-{secrets.token_hex(6)}"
            path.mkdir(parents=True)
            return path

    def publish(
        self,
        staging: Path,
        *,
        version: int,
        step: int,
        lineage: int,
        tokenizer_digest: str = "",
        config_digest: str | None = None,
        probe: LogitProbe | None = None,
        locations: tuple[str, ...] = (),
    ) -> PublishedWeights:
        """Make what lies in `staging` the version `version`; durable, and read back, when this returns.

        A complete version of that number wins over what is staged: see `existed` and `diverged`. An incomplete one (its
        writer died) is replaced. `config_digest` is that of config.json unless given. `staging` is gone afterwards.

        Raises:
            CorruptError: index and shards disagree, or what was written does not read back.
            VolumeFull: no space; the version does not exist.
        """
        with saying_when_full(self.root):
            manifest = describe(staging, version=version, step=step, lineage=lineage, job_uid=self.job_uid)
            manifest = replace(
                manifest,
                tokenizer_digest=tokenizer_digest,
                config_digest=manifest.config_digest if config_digest is None else config_digest,
                probe=probe,
                locations=locations,
            )
            with only_writer(self.root / ".lock", wait_s=LOCK_WAIT_S):
                existing = self.find(version)
                if existing is not None:
                    shutil.rmtree(staging, ignore_errors=True)
                    self._point_latest()
                    return replace(existing, existed=True, diverged=existing.weights_digest != manifest.weights_digest)
                published = self._move_in(staging, manifest)
        logger.info("published weight version %d (%.1f MB)", version, manifest.num_bytes / 1e6)
        return published

    def delete(self, version: int) -> None:
        """Remove a version, its manifest first, so that it is never half there. A version that is gone is no error."""
        with only_writer(self.root / ".lock", wait_s=LOCK_WAIT_S):
            self._remove(self.path(version))

    def sweep(self) -> int:
        """Remove what dead writers left staged or without a manifest; for the only writer. Returns how many."""
        swept = 0
        if self.root.is_dir():
            with only_writer(self.root / ".lock", wait_s=LOCK_WAIT_S):
                for path in sorted(self.root.iterdir()):
                    half = _VERSION_DIR.match(path.name) and not (path / MANIFEST).exists()
                    if (half or _STAGE_DIR.match(path.name)) and path.is_dir() and not path.is_symlink():
                        self._remove(path)
                        swept += 1
        return swept

    # ---- reading

    def path(self, version: int) -> Path:
        """Where a version is, or would be."""
        return self.root / f"weight_v{version:06d}"

    def versions(self) -> list[int]:
        """Versions that have a manifest, oldest first; not verified."""
        if not self.root.is_dir():
            return []
        matches = [_VERSION_DIR.match(path.name) for path in self.root.iterdir() if (path / MANIFEST).is_file()]
        versions = sorted(int(match[1]) for match in matches if match)
        return [version for version in versions if (self.path(version) / MANIFEST).is_file()]

    def find(self, version: int) -> PublishedWeights | None:
        """The version, if it is there and verifies."""
        try:
            data = self._read_manifest(version)
            manifest = self._verify(version, data)
        except (CorruptError, WeightsNotVisible):
            return None
        return PublishedWeights(version, _sha256(data), manifest.weights_digest, self.path(version))

    def verify(self, version: int, manifest_sha256: str) -> WeightManifest:
        """Check that a version is exactly what was announced: manifest, names, sizes and sums of all files.

        Raises:
            WeightsNotVisible: something is not there yet; try again until a deadline.
            CorruptError: something is there that was not published so.
        """
        data = self._read_manifest(version)
        if _sha256(data) != manifest_sha256:
            if not is_complete_json(data):
                raise WeightsNotVisible(f"weight version {version}: {MANIFEST} is not complete yet")
            raise CorruptError(
                f"weight version {version}: {MANIFEST} has SHA-256 {_sha256(data)}, not {manifest_sha256}"
            )
        return self._verify(version, data)

    # ---- inside

    def _move_in(self, staging: Path, manifest: WeightManifest) -> PublishedWeights:
        target = self.path(manifest.version)
        for file in manifest.files:
            self._before(f"sync {file.name}")
            # The library writes files for its own user alone; replicas may run as another.
            (staging / file.name).chmod(0o644)
            sync(staging / file.name)
        staging.chmod(0o755)
        sync(staging)
        if target.exists():
            logger.warning("replacing the incomplete %s", target)
            self._remove(target)
        self._before("rename")
        staging.rename(target)
        self._before("sync root")
        sync(self.root)
        self._before("write manifest")
        data = manifest.to_json()
        try:
            write_new(target / MANIFEST, data)
        except OSError:
            # On a full disk: nothing that looks like a version stays, and the caller may publish the staging again.
            with contextlib.suppress(OSError):
                (target / MANIFEST).unlink(missing_ok=True)
                target.rename(staging)
            raise
        self._before("read back")
        self.verify(manifest.version, _sha256(data))
        self._point_latest()
        return PublishedWeights(manifest.version, _sha256(data), manifest.weights_digest, target)

    def _point_latest(self) -> None:
        temporary = self.root / ".LATEST"
        try:
            self._before("write LATEST")
            temporary.write_text(f"{self.path(max(self.versions())).name}\n")
            temporary.replace(self.root / "LATEST")
        except OSError as error:
            # Nobody but people reads it; the version is complete.
            logger.warning("LATEST could not be written: %s", error)

    def _remove(self, path: Path) -> None:
        self._before("remove manifest")
        (path / MANIFEST).unlink(missing_ok=True)
        self._before("remove files")
        if path.exists():
            shutil.rmtree(path)

    def _read_manifest(self, version: int) -> bytes:
        try:
            if self.path(version).is_symlink():
                raise CorruptError(f"weight version {version} is a link")
            return read_bounded(self.path(version) / MANIFEST, MAX_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise WeightsNotVisible(
                f"weight version {version} is not there: no {MANIFEST} in {self.path(version)}"
            ) from error
        except OSError as error:
            kind = CorruptError if error.errno in _NOT_A_FILE else WeightsNotVisible
            raise kind(f"weight version {version}: {MANIFEST} cannot be read: {error.strerror}") from error

    def _verify(self, version: int, data: bytes) -> WeightManifest:
        manifest = WeightManifest.from_json(data)
        if (manifest.version, manifest.job_uid) != (version, self.job_uid):
            raise CorruptError(
                f"weight version {version} of job {self.job_uid}: its {MANIFEST} says version {manifest.version} "
                f"of job {manifest.job_uid}"
            )
        directory = self.path(version)
        try:
            check_files(directory, manifest)
            check_tensors(directory, manifest)
        except OSError as error:
            # Deleted meanwhile, or a volume with trouble of its own.
            raise WeightsNotVisible(f"weight version {version} cannot be read: {error}") from error
        return manifest


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
