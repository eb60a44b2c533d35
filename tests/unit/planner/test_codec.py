"""Records survive the wire and JSON; what is unknown is refused by name."""

import json
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from drumroll_planner import records as r
from drumroll_planner.codec import (
    decode_snapshot,
    encode_snapshot,
    from_proto,
    record_from_json,
    record_to_json,
    to_proto,
)
from drumroll_proto.v1 import journal_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.errors import CorruptError

KINDS = get_args(r.Record)


def values(hint: Any) -> st.SearchStrategy[Any]:
    if hint is r.TicketId:
        return st.builds(r.TicketId, st.integers(0, 2**32 - 1), st.integers(0, 2**63))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3)
    if hint == r.PartialRef | None:
        return st.none() | records(r.PartialRef)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    simple = {
        int: st.integers(0, 2**31),
        str: st.text(max_size=10),
        bytes: st.binary(max_size=32),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
    }
    return simple[hint] if hint in simple else records(hint)


def records(kind: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{each.name: values(hints[each.name]) for each in fields(kind)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_record_survives_the_wire_and_json(kind: type) -> None:
    @settings(max_examples=20, deadline=None)
    @given(record=records(kind))
    def survives(record: r.Record) -> None:
        message = to_proto(record, time=12.5, incarnation=3)
        read = journal_pb2.JournalRecord.FromString(message.SerializeToString())
        assert from_proto(read) == record
        assert (read.time, read.incarnation) == (12.5, 3)
        assert record_from_json(kind, json.loads(json.dumps(record_to_json(record)))) == record

    survives()


def test_an_unknown_record_kind_is_refused() -> None:
    with pytest.raises(CorruptError, match="kind that this version does not know"):
        from_proto(journal_pb2.JournalRecord(time=1.0))


def test_unknown_enum_values_are_refused_by_name() -> None:
    message = to_proto(r.JobEnded(r.JobOutcome.COMPLETE, ""), time=0, incarnation=0)
    message.job_ended.outcome = 17  # type: ignore[assignment]
    with pytest.raises(CorruptError, match=r"JobEnded\.outcome has the unknown value 'number 17'"):
        from_proto(message)
    message.job_ended.outcome = journal_pb2.JOB_OUTCOME_UNSPECIFIED
    with pytest.raises(CorruptError, match="'unspecified'"):
        from_proto(message)


def test_snapshots_survive_and_damaged_ones_are_refused() -> None:
    data = encode_snapshot({"format": 1, "tickets": [1, 2]})
    assert decode_snapshot(data) == {"format": 1, "tickets": [1, 2]}
    for damaged, words in ((b"no", "no ledger snapshot"), (data[:-3], "damaged"), (encode_snapshot([]), "mapping")):  # type: ignore[arg-type]
        with pytest.raises(CorruptError, match=words):
            decode_snapshot(damaged)
