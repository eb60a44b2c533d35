"""A contradiction between fields, stated twice: a Python predicate (offline) and a CEL expression (API server)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", contravariant=True)
_CEL_FIELD = re.compile(r"self\.([A-Za-z_][A-Za-z_.]*)")


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """What must hold of a model of type T.

    `message` is a sentence that says what to write instead. Where it needs numbers of the job, `explain` makes it
    offline and `cel_message` makes the same one on a server; `message` is then what a server falls back to.
    """

    id: str
    field: str
    """The field to blame, in camelCase, relative to the model; dots go deeper."""
    message: str
    holds: Callable[[T], bool]
    cel: str | None
    """None: CEL cannot say it (or the schema says it already); only offline checks know this rule."""
    explain: Callable[[T], str] | None = None
    cel_message: str | None = None

    def explanation(self, model: T) -> str:
        """The sentence for a model that breaks this rule."""
        return self.explain(model) if self.explain else self.message

    @property
    def reads(self) -> frozenset[str]:
        """Paths of the fields that decide it, in camelCase, relative to the model."""
        names = _CEL_FIELD.findall(self.cel or "")
        return frozenset({self.field, *(name.replace("__", "") for name in names)})
