"""What is wrong with a job file, as values: where, what was found, what to write instead."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from drumroll.errors import JobError

Location = tuple[str | int, ...]
"""A place in a document: keys and indices from its root."""

_SECRET_PLACE = re.compile(r"(^|\.)env(\[\d+\].*)?$|^spec\.stream(\.url)?$")
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, or one piece of advice, about a job file."""

    file: str
    message: str
    document: int | None = None
    """Number of the YAML document in its file, from 1."""
    line: int | None = None
    """Line in the file, from 1."""
    field: str = ""
    """Path in camelCase, such as `spec.rollout.env[0].name`; empty where it is about the whole document."""
    value: str | None = None
    """What was found there; None where nothing was, or where it may be a secret."""
    suggestion: str | None = None
    """What to write instead, where the message does not say it."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        found = f" is {self.value}" if self.value is not None else ""
        subject = f" {self.field}{found}:" if self.field else ""
        return f"{place}:{subject} {self.message}" + (f": {self.suggestion}" if self.suggestion else "")


class InvalidJobs(JobError):
    """A job file that cannot be used; `problems` names every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def dotted(location: Iterable[str | int]) -> str:
    """A location as it is written in messages: `spec.env[0].name`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(field: str, value: Any) -> str | None:
    """A value as a message may show it: one short line, and nothing at all of what may be a secret."""
    if value is None or _SECRET_PLACE.search(field):
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
