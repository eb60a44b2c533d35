"""Whether a store keeps what it is given, judged by its settings: a persistent one that evicts nothing."""

import logging
from dataclasses import dataclass

from drumroll.errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What the store says of itself."""

    appendonly: bool | None
    """None: it does not tell."""
    appendfsync: str | None
    eviction: str | None
    """maxmemory-policy."""
    problems: tuple[str, ...]
    """What is wrong with it, with what to set instead; empty: nothing."""


def judge(where: str, values: dict[str, str | None]) -> StoreHealth:
    """What follows from a store's settings; pure."""
    appendonly, eviction = values.get("appendonly"), values.get("maxmemory-policy")
    problems = []
    if appendonly == "no":
        problems.append(f"the store at {where} has no append-only file: set `appendonly yes`, or a restart loses all")
    if values.get("appendfsync") == "no":
        problems.append(f"the store at {where} leaves syncing to the system: set `appendfsync always` or `everysec`")
    if eviction is not None and eviction != "noeviction":
        problems.append(f"the store at {where} evicts ({eviction}): set `maxmemory-policy noeviction`")
    known = None if appendonly is None else appendonly == "yes"
    return StoreHealth(known, values.get("appendfsync"), eviction, tuple(problems))


def require_sound(health: StoreHealth) -> None:
    """Refuse a store that would lose what it is given.

    Raises:
        UserError: it evicts or has no append-only file. A store that does not tell passes; its problems are logged.
    """
    if health.appendonly is False or health.eviction not in (None, "noeviction"):
        raise UserError("; ".join(health.problems))
    for problem in health.problems:
        logger.warning("%s", problem)
