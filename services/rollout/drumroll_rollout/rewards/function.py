"""A reward function of the user's own, with TRL's signature.

    fn(prompts=…, completions=…, completion_ids=…, **columns) -> list[float | None]      sync or async

Prompts and completions are in conversational form (lists of messages) where the data set's prompts are. Every other
column comes as a list with one entry per completion, and so do `answer`, `metadata` and `data_source`. TRL's
`trainer_state`, `log_extra` and `log_metric` are None, a function that keeps nothing, and one whose numbers become
metric parts of the call's completions. What comes back is held to its contract: one finite number (or None: 0.0,
counted as `unscored`) per completion, nothing broadcast, nothing reshaped.
"""

import asyncio
import importlib
import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from drumroll.errors import RewardError
from drumroll_rollout.rewards.rewards import Batch, Score


class FunctionReward:
    """A loaded function."""

    keeps_processes = True

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        self._accepts = _accepted_parameters(function)
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def load(cls, name: str, *, source_dir: str) -> "FunctionReward":
        """Import `module:function`.

        Raises:
            RewardError: no such module or function, or its import raises.
        """
        module_name, _, function_name = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise RewardError(_not_found(name, module_name, error, source_dir)) from error
        # The edge to foreign code: an import can raise anything, SystemExit among it.
        except BaseException as error:
            where = "".join(traceback.format_exception(error)[-3:])
            raise RewardError(
                f"reward.function {name}: module {module_name!r} does not import: "
                f"{type(error).__name__}: {error}\n{where}"
                f"Correct the module; `python -c 'import {module_name}'` beside the job file shows the same"
            ) from error
        function = getattr(module, function_name, None)
        if not callable(function):
            what = "has no" if function is None else f"has a {type(function).__name__}, not a function,"
            raise RewardError(
                f"reward.function {name}: {module.__file__} {what} {function_name!r}; write module:function"
            )
        return cls(name, function)

    def score(self, batch: Batch) -> Sequence[Score]:
        logged: dict[str, float] = {}
        value = self._function(**self._arguments(batch, logged))
        if inspect.isawaitable(value):
            # One loop for all calls: what a function keeps between them, such as a client's session, belongs to it.
            self._loop = self._loop or asyncio.new_event_loop()
            value = self._loop.run_until_complete(_awaited(value))
        rewards = checked_rewards(self.name, value, expected=len(batch.completions))
        return [(reward or 0.0, logged | {"unscored": float(reward is None)}) for reward in rewards]

    def _arguments(self, batch: Batch, logged: dict[str, float]) -> dict[str, Any]:
        arguments = function_arguments(batch)
        required, accepted = self._accepts
        given = trainer_arguments(self.name, logged) | arguments
        missing = [name for name in required if name not in given]
        if missing:
            raise RewardError(
                f"reward.function {self.name} asks for {', '.join(map(repr, missing))}, which no column "
                f"provides; there are {', '.join(map(repr, arguments))}"
            )
        return given if accepted is None else {name: given[name] for name in accepted if name in given}


async def _awaited(value: Any) -> Any:
    return await value


def _not_found(name: str, module_name: str, error: ModuleNotFoundError, source_dir: str) -> str:
    if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
        return (
            f"reward.function {name}: there is no module {module_name!r} in {source_dir} nor on PYTHONPATH; put "
            f"{module_name.replace('.', '/')}.py beside the job file"
        )
    return (
        f"reward.function {name}: module {module_name!r} does not import: it needs {error.name!r}, which is not "
        f"installed where the rollouts run"
    )


def _accepted_parameters(function: Callable[..., Any]) -> tuple[list[str], list[str] | None]:
    """(parameters without a default, all parameters or None where it takes any)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in named if p.default is p.empty]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return required, None if takes_any else [p.name for p in named]


def function_arguments(batch: Batch) -> dict[str, Any]:
    """Keyword arguments of a call, TRL's way. Pure."""
    columns = dict.fromkeys(name for row in batch.inputs for name in row if name not in ("prompt", "prompts"))
    completions = [
        [{"role": "assistant", "content": text}] if isinstance(prompt, list) else text
        for prompt, text in zip(batch.prompts, batch.completions, strict=True)
    ]
    return {name: [row.get(name) for row in batch.inputs] for name in columns} | {
        "prompts": batch.prompts,
        "completions": completions,
        "completion_ids": batch.completion_ids,
    }


def trainer_arguments(name: str, logged: dict[str, float]) -> dict[str, Any]:
    """What TRL's trainer gives to reward functions beside the columns; `log_metric` writes into `logged`."""

    def log_metric(metric: str, value: Any) -> None:
        number = _number(value)
        if number is None or number is _NOT_A_NUMBER:
            raise RewardError(f"reward.function {name}: log_metric({metric!r}) takes a number, not {_described(value)}")
        logged[str(metric)] = number

    return {"trainer_state": None, "log_extra": lambda column, values: None, "log_metric": log_metric}


def checked_rewards(name: str, value: Any, *, expected: int) -> list[float | None]:
    """What a function returned, as numbers.

    Lists, tuples and one-dimensional arrays and tensors of numbers, booleans (True is 1.0), NumPy scalars and None
    are taken.

    Raises:
        RewardError: anything else; names the function, what was expected and what came.
    """

    def refused(came: str) -> RewardError:
        return RewardError(
            f"reward.function {name} must return a list of {expected} numbers, one per completion, but returned {came}"
        )

    shape = getattr(value, "shape", None)
    if shape is not None and len(shape) != 1:
        raise refused(f"an array of shape {tuple(shape)}")
    if shape is None and not isinstance(value, list | tuple):
        raise refused(_described(value))
    items = list(value)
    if len(items) != expected:
        raise refused(f"{len(items)}: {_shortened(items)}")
    rewards: list[float | None] = []
    for index, item in enumerate(items):
        reward = _number(item)
        if reward is _NOT_A_NUMBER:
            raise refused(f"{_described(item)} at position {index}")
        rewards.append(reward)
    return rewards


_NOT_A_NUMBER = math.nan


def _number(item: Any) -> float | None:
    """The item as a float or None; _NOT_A_NUMBER itself for everything else, not finite numbers among it."""
    if item is None:
        return None
    if getattr(item, "shape", None) == () and hasattr(item, "item"):
        item = item.item()
    if not isinstance(item, int | float):
        return _NOT_A_NUMBER
    try:
        number = float(item)
    except OverflowError:
        return _NOT_A_NUMBER
    return number if math.isfinite(number) else _NOT_A_NUMBER


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape:
        return f"an array of shape {tuple(shape)}"
    return f"{type(value).__name__} {_shortened(value)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
