"""Entries of the stream: what is refused before anybody looks into a payload (case S2)."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
from drumroll_proto.v1 import sample_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.entries import EntryRef, entry_key, is_entry_id, make_header, parse_entry
from drumroll.errors import CorruptError
from drumroll.samples import EntryKind, Limits, SampleId

NO_DEADLINE = settings(max_examples=60, deadline=None)
SAMPLE = SampleId(1, 2, 3, 4)


def fields_of(payload: bytes, uid: str = "job-1", kind: EntryKind = EntryKind.SAMPLE) -> dict[bytes, bytes]:
    digest = hashlib.sha256(payload).digest()
    header = make_header(uid, sample=SAMPLE, lease_id="l", kind=kind, payload_sha256=digest, payload_bytes=len(payload))
    return {b"h": header, b"p": payload}


def ref_of(payload: bytes) -> EntryRef:
    return EntryRef("5-0", hashlib.sha256(payload).digest())


@NO_DEADLINE
@given(st.binary(max_size=100), st.sampled_from(EntryKind))
def test_an_entry_reads_back_as_it_was_made(payload: bytes, kind: EntryKind) -> None:
    entry = parse_entry("job-1", ref_of(payload), fields_of(payload, kind=kind))
    assert (entry.payload, entry.sample, entry.lease_id, entry.kind) == (payload, SAMPLE, "l", kind)
    assert entry.ref == EntryRef("5-0", hashlib.sha256(payload).digest(), len(payload))


@NO_DEADLINE
@given(st.dictionaries(st.sampled_from([b"h", b"p", b"x"]), st.binary(max_size=200), max_size=3))
def test_random_fields_are_refused_s2(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(CorruptError):
        parse_entry("job-1", ref_of(fields.get(b"p", b"")), fields)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_refused_in_either_field_and_nothing_runs_s2(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))
    with pytest.raises(CorruptError, match="header"):
        parse_entry("job-1", ref_of(b"x"), {b"h": bomb, b"p": b"x"})
    entry = parse_entry("job-1", ref_of(bomb), fields_of(bomb))
    with pytest.raises(CorruptError):
        entry.decode(Limits(8, 8))
    assert not (tmp_path / "ran").exists()


def changed_header(**changes: object) -> dict[bytes, bytes]:
    fields = fields_of(b"abc")
    message = pb.SampleHeader.FromString(fields[b"h"])
    message.MergeFrom(pb.SampleHeader(**changes))  # type: ignore[arg-type]  # any field, for the test
    return {b"h": message.SerializeToString(), b"p": b"abc"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (fields_of(b"abc", uid="job-2"), "belongs to job 'job-2', not to 'job-1'"),
        (changed_header(schema_version=9), "schema version 9"),
        (changed_header(kind=7), "unknown entry kind 7"),
        (changed_header(payload_bytes=4), "sum or size"),
        (changed_header(payload_sha256=b"0" * 32), "sum or size"),
        (changed_header(lease_id="x" * 5000), "a header of"),
        (changed_header(payload=pb.PayloadLocation(uri="s3://x")), "lies elsewhere"),
        (fields_of(b"abcd"), "not the one that was reported"),
        (fields_of(b"x" * 51), "51 bytes, at most 50"),
        ({b"h": b"\x0a\xff", b"p": b"abc"}, "not a SampleHeader"),
    ],
)
def test_an_entry_that_is_not_what_was_reported_is_refused_s2(fields: dict[bytes, bytes], reason: str) -> None:
    with pytest.raises(CorruptError, match=reason):
        parse_entry("job-1", ref_of(b"abc"), fields, max_bytes=50)


def test_entry_ids_sort_by_time_and_number_and_ranges_are_no_ids() -> None:
    assert entry_key("10-2") > entry_key("9-11")
    for text in ("-", "+", "5", "5-", "(5-0", "5-0-0", f"{2**64}-0", ""):
        assert not is_entry_id(text)
    with pytest.raises(CorruptError, match="'-' is not an entry id"):
        entry_key("-")


def test_references_cross_the_wire() -> None:
    ref = EntryRef("5-0", b"s" * 32, 7)
    assert EntryRef.from_proto(ref.to_proto()) == ref
    assert EntryRef.from_proto(EntryRef("5-0", b"s").to_proto()).num_bytes is None
