"""For tests: waiting for a condition, with a deadline and a message, never for a time; values changed in part."""

import asyncio
import copy
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_PAUSE_S = 0.02


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], deadline_s: float = ..., message: str = ...) -> T: ...


@overload
async def eventually(predicate: Callable[[], T], deadline_s: float = ..., message: str = ...) -> T: ...


async def eventually(predicate: Callable[[], Any], deadline_s: float = 10.0, message: str = "the condition") -> Any:
    """The first true value that `predicate` (plain or async) returns.

    Raises:
        AssertionError: it has returned none in `deadline_s`; the message tells the last value.
    """
    end = time.monotonic() + deadline_s
    while True:
        value = predicate()
        result = await value if inspect.isawaitable(value) else value
        if result:
            return result
        _check_time(end, deadline_s, message, result)
        await asyncio.sleep(_PAUSE_S)


def eventually_sync(
    predicate: Callable[[], T], deadline_s: float = 10.0, message: str = "the condition", *, pause_s: float = _PAUSE_S
) -> T:
    """As `eventually`, without an event loop."""
    end = time.monotonic() + deadline_s
    while not (result := predicate()):
        _check_time(end, deadline_s, message, result)
        time.sleep(pause_s)
    return result


def _check_time(end: float, deadline_s: float, message: str, last: object) -> None:
    if time.monotonic() > end:
        raise AssertionError(f"{message}: not within {deadline_s} s; last value {last!r}")


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `base` with nested values replaced; None removes a key."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
