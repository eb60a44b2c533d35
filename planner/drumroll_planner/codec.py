"""Records to and from protobuf and JSON, generic by field names; snapshot bytes.

A record's class name in snake case names its field in `JournalRecord`; its fields have the names of the message's.
Unknown record kinds and enum values are refused by name.
"""

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from drumroll_proto.v1 import journal_pb2
from google.protobuf.message import Message

from drumroll.errors import CorruptError
from drumroll_planner import records as r

T = TypeVar("T")

_MAGIC = b"DRS1"
"""A ledger snapshot: magic, then compressed JSON."""


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_KINDS: dict[str, type] = {_snake(kind.__name__): kind for kind in get_args(r.Record)}


_FIELDS: dict[type, tuple[tuple[str, Any], ...]] = {}


def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """(name, type without None) of each field, in order."""
    if kind not in _FIELDS:
        # Dataclasses and NamedTuples alike: hints stand in the order of the fields.
        hints = get_type_hints(kind)
        _FIELDS[kind] = tuple((name, _without_none(hints[name])) for name in hints)
    return _FIELDS[kind]


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hint is r.TicketId)


# -- protobuf ----------------------------------------------------------------------------------------------------


def to_proto(record: r.Record, *, time: float, incarnation: int) -> journal_pb2.JournalRecord:
    """A record as it is journaled. `time`: Unix seconds, for people and plots; no decision reads it."""
    message = journal_pb2.JournalRecord(time=time, incarnation=incarnation)
    target = getattr(message, _snake(type(record).__name__))
    target.SetInParent()
    fill_message(target, record)
    return message


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
    for name, hint in _fields(type(value)):
        item = getattr(value, name)
        if item is None:
            continue
        if get_origin(hint) is tuple:
            for each in item:
                fill_message(getattr(message, name).add(), each)
        elif _is_message(hint):
            target = getattr(message, name)
            target.SetInParent()
            fill_message(target, item)
        elif get_origin(hint) is Mapping:
            getattr(message, name).update(item)
        elif isinstance(item, StrEnum):
            setattr(message, name, _enum_number(message, name, item))
        else:
            setattr(message, name, item)


def read_message(kind: type[T], message: Message) -> T:
    """The dataclass or TicketId of `records` from a message whose fields have the same names.

    Raises:
        CorruptError: an enum value that this version does not know.
    """
    values: dict[str, Any] = {}
    for name, hint in _fields(kind):
        item = getattr(message, name)
        if get_origin(hint) is tuple:
            values[name] = tuple(read_message(get_args(hint)[0], each) for each in item)
        elif _is_message(hint):
            optional = hint is r.PartialRef and not message.HasField(name)
            values[name] = None if optional else read_message(hint, item)
        elif get_origin(hint) is Mapping:
            values[name] = dict(item)
        elif isinstance(hint, type) and issubclass(hint, StrEnum):
            values[name] = _enum_value(hint, message, name, item)
        else:
            values[name] = item
    return kind(**values)


def _enum_number(message: Message, name: str, value: StrEnum) -> int:
    values = _enum_of(message, name).values_by_name
    return int(values[f"{_snake(type(value).__name__)}_{value.value}".upper()].number)


def _enum_of(message: Message, name: str) -> Any:
    return message.DESCRIPTOR.fields_by_name[name].enum_type


def _enum_value(kind: type[StrEnum], message: Message, name: str, number: int) -> StrEnum:
    known = _enum_of(message, name).values_by_number.get(number)
    prefix = f"{_snake(kind.__name__)}_".upper()
    text = f"number {number}" if known is None else known.name.removeprefix(prefix).lower()
    try:
        return kind(text)
    except ValueError as error:
        raise CorruptError(f"{message.DESCRIPTOR.name}.{name} has the unknown value {text!r}") from error


# -- JSON --------------------------------------------------------------------------------------------------------


def record_to_json(value: Any) -> Any:
    """A record as a list of its fields' values; bytes as hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, r.TicketId):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [record_to_json(getattr(value, name)) for name, _ in _fields(type(value))]
    if isinstance(value, tuple):
        return [record_to_json(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def record_from_json(kind: type[T], data: Any) -> T:
    """The inverse of `record_to_json`."""
    return kind(*(_item(hint, item) for (_, hint), item in zip(_fields(kind), data, strict=True)))


def _item(hint: Any, item: Any) -> Any:
    if item is None:
        return None
    if get_origin(hint) is tuple:
        return tuple(_item(get_args(hint)[0], each) for each in item)
    if _is_message(hint):
        return record_from_json(hint, item)
    if hint is bytes:
        return bytes.fromhex(item)
    return hint(item) if isinstance(hint, type) and issubclass(hint, StrEnum) else item


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
