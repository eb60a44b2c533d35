"""Texts for people: cleaned of what the API server or terminals refuse, and cut in the middle, where least is lost."""

import json
from collections.abc import Iterable

MESSAGE_CHARACTERS = 32_768
"""Limit of a condition's message, in characters."""
EVENT_BYTES = 1_024
"""Limit of an Event's note, in bytes of UTF-8."""
_CUT = " [...] "


def clean(text: str) -> str:
    """Without NUL, other control characters and lone surrogates; line ends and tabs stay."""
    kept = "".join(character for character in text if character >= " " or character in "\n\t")
    return kept.encode("utf-8", "replace").decode("utf-8").strip()


def condition_message(text: str, most: int = MESSAGE_CHARACTERS) -> str:
    """For a condition or another field of a status: at most so many characters, head and tail kept."""
    text = clean(text)
    if len(text) <= most:
        return text
    half = (most - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def event_note(text: str) -> str:
    """For an Event: at most 1,024 bytes. The tail gets two thirds of the room: an error's cause is its last line."""
    text = clean(text)
    data = text.encode()
    if len(data) <= EVENT_BYTES:
        return text
    room = EVENT_BYTES - len(_CUT)
    head = data[: room // 3].decode("utf-8", "ignore")
    return head + _CUT + data[-(room - room // 3) :].decode("utf-8", "ignore")


def last_words(text: str) -> str:
    """What a process said of its end: message or reason of a JSON object, which may be empty, or the text itself."""
    said = json_object(text)
    words = [str(said[name]) for name in ("message", "reason") if isinstance(said.get(name), str) and said[name]]
    return clean(words[0] if words else "" if said else text)


def json_object(text: str) -> dict[str, object]:
    """The object, or nothing where the text is none."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def names(items: Iterable[str], most: int = 3) -> str:
    """A short list: a, b, c and 7 more."""
    listed = list(items)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest
