"""A stored status as a value. What cannot be read is left out, field by field: the end of a job and its charges must
survive a status that an older or newer operator, or a person, has written."""

from typing import Any

from pydantic import ValidationError

from drumroll.api.status import RLJobStatus


def read_status(raw: object) -> RLJobStatus:
    """The status; an empty one where nothing of it can be read. Never fails."""
    if not isinstance(raw, dict):
        return RLJobStatus()
    known: Any = raw
    for _ in range(64):
        try:
            return RLJobStatus.model_validate(known)
        except ValidationError as error:
            known = _without(known, {tuple(item["loc"]) for item in error.errors()})
    return RLJobStatus()


def _without(raw: Any, wrong: set[tuple[int | str, ...]]) -> Any:
    """The same without the fields, or the items of lists, at these places."""
    if isinstance(raw, dict):
        kept = {}
        for key, value in raw.items():
            inner = {place[1:] for place in wrong if place[0] == key}
            if () not in inner:
                kept[key] = _without(value, inner) if inner else value
        return kept
    if isinstance(raw, list):
        bad = {place[0] for place in wrong}
        return [item for index, item in enumerate(raw) if index not in bad]
    return raw
