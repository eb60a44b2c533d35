"""A snapshot of the ledger: all that the journal up to one entry amounts to, as bytes that need nothing else.

The store holds one under the journal's tail; every checkpoint carries one, from which a lost store is rebuilt.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from drumroll.errors import CorruptError

SCHEMA_VERSION = 1
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """The checkpoint that a snapshot was made for; once that is complete, it covers the steps below `step`."""

    step: int
    version: int
    lineage: int


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """See the module."""

    job_uid: str
    upto_seq: int
    """The last journal entry that is in it."""
    incarnation: int
    policy: Mapping[str, Any]
    """`Policy.snapshot()`."""
    story: Mapping[str, Any]
    """`Story.to_json()`; holds the digests of data and rules."""
    checkpoint: CheckpointMark | None = None

    def to_json(self) -> str:
        """JSON text; cut off from the live state that `policy` and `story` came from."""
        # Not by asdict, which would copy the whole policy first.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["checkpoint"] = asdict(self.checkpoint) if self.checkpoint is not None else None
        return json.dumps({"schema_version": SCHEMA_VERSION, **values}, separators=(",", ":"))


def compress(text: str) -> bytes:
    """A snapshot's JSON as it is stored."""
    return zlib.compress(text.encode(), level=3)


def decode(data: bytes, *, job_uid: str) -> LedgerSnapshot:
    """Read a snapshot.

    Raises:
        CorruptError: damaged, of another schema version or of another job.
    """
    try:
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(data, _MOST_BYTES)
        if not decompressor.eof:
            raise CorruptError("a ledger snapshot is cut short or too large")
        values = json.loads(text)
        version = values.pop("schema_version")
        if version != SCHEMA_VERSION:
            raise CorruptError(f"a ledger snapshot has schema version {version}, not {SCHEMA_VERSION}")
        mark = values.pop("checkpoint")
        snapshot = LedgerSnapshot(**values, checkpoint=CheckpointMark(**mark) if mark else None)
    except (zlib.error, KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptError(f"these bytes are not a ledger snapshot: {error!r}") from error
    if snapshot.job_uid != job_uid:
        raise CorruptError(f"the ledger snapshot belongs to job {snapshot.job_uid!r}, not to {job_uid!r}")
    return snapshot
