"""Files of a weight version on a volume: written once, synced, read without following links.

Network volumes may show a rename or a file late or in pieces; nothing here relies on the contrary.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from drumroll.errors import CorruptError, TemporaryError, VolumeFull

logger = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LOCKS = {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
_SILLY_RENAME = ".nfs"
"""NFS keeps a deleted file that is still open under such a name; it is never read."""


def regular_files(directory: Path) -> dict[str, int]:
    """Name to size in bytes of all entries, by name.

    Raises:
        CorruptError: an entry is no regular file: a link or a folder could lead outside.
    """
    sizes = {}
    for name in sorted(os.listdir(directory)):
        if name.startswith(_SILLY_RENAME):
            continue
        status = os.lstat(directory / name)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptError(f"{directory.name}/{name} is not a regular file")
        sizes[name] = status.st_size
    return sizes


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a regular file; a link is not followed."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; a link is not followed."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CorruptError(f"{path.name} is larger than {limit} bytes")
    return data


def sync(path: Path) -> None:
    """Make a file's or a directory's contents durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and make it durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


@contextlib.contextmanager
def saying_when_full(directory: Path) -> Iterator[None]:
    """Turn "no space left" into VolumeFull, with how much is left and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        with contextlib.suppress(OSError):
            status = os.statvfs(directory)
            left = f"{status.f_bavail * status.f_frsize / 2**20:.0f} MiB left"
            advice = "make room, enlarge it, or lower weights.keep or checkpoint.keep"
            raise VolumeFull(f"the volume of {directory} is full ({left}): {advice}") from error
        raise VolumeFull(f"the volume of {directory} is full") from error


@contextlib.contextmanager
def only_writer(lock_file: Path, *, wait_s: float) -> Iterator[None]:
    """Hold an advisory lock against other writers, in this process or another.

    On volumes without locks it goes on without: what is written is read back and checked all the same.

    Raises:
        TemporaryError: another writer held it for `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TemporaryError(f"another process has held {lock_file} for {wait_s:.0f} s") from None
                time.sleep(0.02)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                logger.info("%s: this volume has no locks (%s)", lock_file, error.strerror)
                break
        yield
    finally:
        os.close(descriptor)
