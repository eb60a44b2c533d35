"""Records to and from protobuf and JSON, generic by field names; snapshot bytes.

A record's class name in snake case names its field in `JournalRecord`; its fields have the names of the message's.
Unknown record kinds and enum values are refused by name.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from drumroll_proto.v1 import common_pb2, journal_pb2
from google.protobuf.message import Message

from drumroll.errors import CorruptError
from drumroll_planner import records as r

T = TypeVar("T")

_MAGIC = b"DRS1"
"""A ledger snapshot: magic, then compressed JSON."""


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_KINDS: dict[str, type] = {_snake(kind.__name__): kind for kind in get_args(r.Record)}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """How the values of one class are taken apart and put together; made once, because every record comes by here."""

    names: tuple[str, ...]
    hints: tuple[Any, ...]
    """Types without None."""
    values: Callable[[Any], tuple[Any, ...]]
    """All field values of an instance, in order."""


_SHAPES: dict[type, _Shape] = {}


def _shape(kind: type) -> _Shape:
    shape = _SHAPES.get(kind)
    if shape is None:
        # Dataclasses and NamedTuples alike: hints stand in the order of the fields.
        hints = {name: _without_none(hint) for name, hint in get_type_hints(kind).items()}
        get = attrgetter(*hints) if len(hints) > 1 else lambda value: (getattr(value, next(iter(hints))),)
        shape = _SHAPES[kind] = _Shape(tuple(hints), tuple(hints.values()), get)
    return shape


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hint is r.TicketId)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)


# -- protobuf ----------------------------------------------------------------------------------------------------


def to_proto(record: r.Record, *, time: float, incarnation: int) -> journal_pb2.JournalRecord:
    """A record as it is journaled. `time`: Unix seconds, for people and plots; no decision reads it."""
    fields: dict[str, Any] = {_NAMES[type(record)]: _to_fields(record)}
    return journal_pb2.JournalRecord(time=time, incarnation=incarnation, **fields)


def from_proto(message: journal_pb2.JournalRecord) -> r.Record:
    """The record of a journaled message.

    Raises:
        CorruptError: a record kind or an enum value that this version does not know.
    """
    name = message.WhichOneof("record")
    if name is None:
        raise CorruptError("a journal record is of a kind that this version does not know")
    record: r.Record = read_message(_KINDS[name], getattr(message, name))
    return record


def fill_message(message: Message, value: object) -> None:
    """Copy a dataclass or TicketId of `records` into the message whose fields have the same names."""
    message.MergeFrom(type(message)(**_to_fields(value)))


def _to_fields(value: Any) -> dict[str, Any]:
    """A message's fields by name, as its constructor takes them."""
    shape = _shape(type(value))
    fields: dict[str, Any] = {}
    for name, item in zip(shape.names, shape.values(value), strict=True):
        if item.__class__ in _PLAIN:
            fields[name] = item
        elif isinstance(item, StrEnum):
            fields[name] = _ENUM_NUMBERS[item.__class__][item]
        elif item.__class__ is tuple:
            fields[name] = [_to_fields(each) for each in item]
        elif isinstance(item, Mapping):
            fields[name] = dict(item)
        elif _is_message(item.__class__):
            fields[name] = _to_fields(item)
        elif item is not None:
            fields[name] = item
    return fields


_PLAIN = frozenset({int, float, bool, str, bytes})


def read_message(kind: type[T], message: Message) -> T:
    """The dataclass or TicketId of `records` from a message whose fields have the same names.

    Raises:
        CorruptError: an enum value that this version does not know.
    """
    shape = _shape(kind)
    values: list[Any] = []
    for name, hint in zip(shape.names, shape.hints, strict=True):
        item = getattr(message, name)
        if hint in _PLAIN:
            values.append(item)
        elif get_origin(hint) is tuple:
            each_kind = get_args(hint)[0]
            values.append(tuple([read_message(each_kind, each) for each in item]))
        elif _is_message(hint):
            optional = hint is r.PartialRef and not message.HasField(name)
            values.append(None if optional else read_message(hint, item))
        elif _is_enum(hint):
            values.append(_enum_value(hint, message, name, item))
        else:
            values.append(dict(item))
    return kind(*values)


def _enum_names(kind: type[StrEnum]) -> dict[StrEnum, int]:
    wire = getattr(common_pb2, kind.__name__, None) or getattr(journal_pb2, kind.__name__)
    prefix = _snake(kind.__name__)
    return {member: int(wire.Value(f"{prefix}_{member.value}".upper())) for member in kind}


_ENUM_NUMBERS: dict[type[StrEnum], dict[StrEnum, int]] = {
    kind: _enum_names(kind) for kind in (r.TicketEnd, r.LeaseKind, r.ReturnReason, r.JobOutcome)
}
_ENUM_MEMBERS = {
    kind: {number: member for member, number in numbers.items()} for kind, numbers in _ENUM_NUMBERS.items()
}


def _enum_value(kind: type[StrEnum], message: Message, name: str, number: int) -> StrEnum:
    found = _ENUM_MEMBERS[kind].get(number)
    if found is not None:
        return found
    enum: Any = message.DESCRIPTOR.fields_by_name[name].enum_type
    known = enum.values_by_number.get(number)
    prefix = f"{_snake(kind.__name__)}_".upper()
    text = f"number {number}" if known is None else known.name.removeprefix(prefix).lower()
    raise CorruptError(f"{message.DESCRIPTOR.name}.{name} has the unknown value {text!r}")


# -- JSON --------------------------------------------------------------------------------------------------------


def record_to_json(value: Any) -> Any:
    """A record as a list of its fields' values; bytes as hexadecimal."""
    return [item if item.__class__ in _JSON else _to_json(item) for item in _shape(type(value)).values(value)]


_JSON = frozenset({int, float, bool, str, NoneType})


def _to_json(item: Any) -> Any:
    if isinstance(item, bytes):
        return item.hex()
    if isinstance(item, StrEnum):
        return item.value
    if isinstance(item, r.TicketId):
        return list(item)
    if isinstance(item, tuple):
        return [record_to_json(each) for each in item]
    return dict(item) if isinstance(item, Mapping) else record_to_json(item)


def record_from_json(kind: type[T], data: Any) -> T:
    """The inverse of `record_to_json`."""
    shape = _shape(kind)
    return kind(
        *[item if hint in _PLAIN_JSON else _item(hint, item) for hint, item in zip(shape.hints, data, strict=True)]
    )


_PLAIN_JSON = _PLAIN - {bytes}


def _item(hint: Any, item: Any) -> Any:
    if item is None:
        return None
    if get_origin(hint) is tuple:
        return tuple(_item(get_args(hint)[0], each) for each in item)
    if hint is bytes:
        return bytes.fromhex(item)
    if hint is r.TicketId:
        return r.TicketId(*item)
    if _is_message(hint):
        return record_from_json(hint, item)
    return hint(item) if _is_enum(hint) else item


# -- snapshots ---------------------------------------------------------------------------------------------------


def encode_snapshot(snapshot: Mapping[str, Any]) -> bytes:
    """Bytes of `Policy.snapshot()`; equal snapshots give equal bytes."""
    return _MAGIC + zlib.compress(json.dumps(snapshot, separators=(",", ":"), sort_keys=True).encode(), 1)


def decode_snapshot(data: bytes) -> dict[str, Any]:
    """The snapshot of these bytes.

    Raises:
        CorruptError: these are no snapshot's bytes.
    """
    if not data.startswith(_MAGIC):
        raise CorruptError("these bytes are no ledger snapshot")
    try:
        snapshot = json.loads(zlib.decompress(data[len(_MAGIC) :]))
    except (zlib.error, ValueError) as error:
        raise CorruptError(f"the ledger snapshot is damaged: {error}") from error
    if not isinstance(snapshot, dict):
        raise CorruptError("the ledger snapshot is not a mapping")
    return snapshot
