"""One entry of the sample stream: header and payload, where it lies and what it hashes to. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from drumroll_proto.v1 import common_pb2
from drumroll_proto.v1 import sample_pb2 as pb
from google.protobuf.message import DecodeError

from drumroll.errors import CorruptError
from drumroll.samples import EntryKind, Limits, SampleId, SamplePayload, decode

HEADER_VERSION = 1
_MAX_HEADER_BYTES = 4096
_ENTRY_ID = re.compile(r"^(\d{1,20})-(\d{1,20})$")
_KINDS = {EntryKind.SAMPLE: pb.ENTRY_KIND_SAMPLE, EntryKind.PARTIAL: pb.ENTRY_KIND_PARTIAL}
_KIND_NAMES = {int(value): kind for kind, value in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class EntryRef:
    """Where an entry is, and what its payload must hash to."""

    entry_id: str
    """Such as "1732999999999-0"."""
    sha256: bytes
    """32 bytes."""
    num_bytes: int | None = None
    """Of the payload; None: not told."""

    def to_proto(self) -> common_pb2.EntryRef:
        """The wire's form."""
        return common_pb2.EntryRef(entry_id=self.entry_id, sha256=self.sha256, num_bytes=self.num_bytes or 0)

    @classmethod
    def from_proto(cls, message: common_pb2.EntryRef) -> "EntryRef":
        return cls(message.entry_id, message.sha256, message.num_bytes or None)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as read: its sum is right, its payload is not decoded yet."""

    ref: EntryRef
    sample: SampleId
    lease_id: str
    kind: EntryKind
    payload: bytes

    def decode(self, limits: Limits) -> SamplePayload:
        """The payload.

        Raises:
            CorruptError: it is not what it must be.
        """
        return decode(self.payload, limits)


def entry_key(entry_id: str) -> tuple[int, int]:
    """What entry ids are ordered by: (server's milliseconds, number in them).

    Raises:
        CorruptError: not an entry id.
    """
    match = _ENTRY_ID.match(entry_id)
    if match is None or max(key := (int(match[1]), int(match[2]))) >= 2**64:
        raise CorruptError(f"{entry_id[:64]!r} is not an entry id")
    return key


def is_entry_id(text: str) -> bool:
    """Whether `text` is the full id of one entry."""
    try:
        entry_key(text)
    except CorruptError:
        return False
    return True


def make_header(
    uid: str, *, sample: SampleId, lease_id: str, kind: EntryKind, payload_sha256: bytes, payload_bytes: int
) -> bytes:
    """Field `h` of an entry."""
    message = pb.SampleHeader(
        schema_version=HEADER_VERSION,
        job_uid=uid,
        sample=common_pb2.SampleId(
            ticket=common_pb2.TicketId(epoch=sample.epoch, ordinal=sample.ordinal),
            index=sample.index,
            attempt=sample.attempt,
        ),
        lease_id=lease_id,
        kind=_KINDS[kind],
        payload_sha256=payload_sha256,
        payload_bytes=payload_bytes,
    )
    return message.SerializeToString(deterministic=True)


def parse_entry(uid: str, ref: EntryRef, fields: Mapping[bytes, bytes], *, max_bytes: int | None = None) -> Entry:
    """Check an entry against the job and the reference that asked for it.

    Raises:
        CorruptError: with the reason.
    """
    header, payload = fields.get(b"h"), fields.get(b"p")
    if header is None or payload is None or len(fields) != 2:
        raise CorruptError("the entry does not consist of the fields h and p")
    if len(header) > _MAX_HEADER_BYTES:
        raise CorruptError(f"a header of {len(header)} bytes, at most {_MAX_HEADER_BYTES} are allowed")
    if max_bytes is not None and len(payload) > max_bytes:
        raise CorruptError(f"a payload of {len(payload)} bytes, at most {max_bytes} are allowed")
    message = _parse_header(header)
    if message.job_uid != uid:
        raise CorruptError(f"the entry belongs to job {message.job_uid[:64]!r}, not to {uid!r}")
    kind = _KIND_NAMES.get(message.kind)
    if kind is None:
        raise CorruptError(f"unknown entry kind {message.kind}")
    digest = hashlib.sha256(payload).digest()
    if digest != message.payload_sha256 or message.payload_bytes != len(payload):
        raise CorruptError("the payload's sum or size is not that of its header")
    if digest != ref.sha256:
        raise CorruptError("the payload's sum is not the one that was reported")
    ticket = message.sample.ticket
    sample = SampleId(ticket.epoch, ticket.ordinal, message.sample.index, message.sample.attempt)
    return Entry(EntryRef(ref.entry_id, digest, len(payload)), sample, message.lease_id, kind, payload)


def _parse_header(header: bytes) -> pb.SampleHeader:
    try:
        message = pb.SampleHeader.FromString(header)
    except DecodeError as error:
        raise CorruptError("the header is not a SampleHeader message") from error
    if message.schema_version != HEADER_VERSION:
        raise CorruptError(f"entry schema version {message.schema_version}; {HEADER_VERSION} is known here")
    if message.HasField("payload"):
        raise CorruptError("the payload lies elsewhere, which is not supported here")
    return message
