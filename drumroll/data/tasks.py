"""Generated tasks of reasoning-gym as rows of a data set.

A row carries what its scorer needs to make the very same entry again (name, seed, size, config, index): entries hold
values that JSON cannot, so the entry itself is not stored.
"""

import difflib
import warnings
from typing import Any

from drumroll.api.sources import Task
from drumroll.data.files import Row, Rows
from drumroll.errors import JobError


def read_tasks(tasks: list[Task], *, field: str, max_rows: int | None = None) -> Rows:
    """The rows of all tasks, one task after the other.

    Raises:
        JobError: reasoning-gym is not installed, or has no such task or parameter.
    """
    rows: list[Row] = []
    for number, task in enumerate(tasks):
        left = None if max_rows is None else max_rows - len(rows)
        rows.extend(_rows_of(task, f"{field}.tasks[{number}]", left))
    return Rows("reasoning-gym", ("prompt", "answer", "metadata", "data_source"), rows)


def _rows_of(task: Task, field: str, left: int | None) -> list[Row]:
    dataset = create(
        {"name": task.name, "seed": task.seed, "size": task.size, "config": dict(task.config)}, field=field
    )
    count = task.size if left is None else min(task.size, max(left, 0))
    return [_row(task, index, dataset[index]) for index in range(count)]


def _row(task: Task, index: int, entry: dict[str, Any]) -> Row:
    origin = {"name": task.name, "seed": task.seed, "size": task.size, "config": dict(task.config), "index": index}
    return {
        "prompt": entry["question"],
        "answer": None if entry["answer"] is None else str(entry["answer"]),
        "metadata": {"task": origin},
        "data_source": f"reasoning-gym/{task.name}",
    }


def create(task: dict[str, Any], *, field: str) -> Any:
    """The reasoning-gym data set of {name, seed, size, config}.

    Raises:
        JobError: as `read_tasks`.
    """
    try:
        with warnings.catch_warnings():
            # Compiling one of its dependencies warns of a comparison by identity.
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise JobError(
            f"{field}: generated tasks need the package reasoning-gym, which does not import: {error}"
        ) from error
    name = task["name"]
    if name not in DATASETS:
        near = difflib.get_close_matches(name, list(DATASETS), n=3)
        hint = f"; near ones are {', '.join(near)}" if near else ""
        raise JobError(f"{field}.name: reasoning-gym has no task {name!r}{hint}")
    try:
        return reasoning_gym.create_dataset(name, seed=task["seed"], size=task["size"], **task["config"])
    except (TypeError, ValueError, AssertionError) as error:
        raise JobError(f"{field}.config: reasoning-gym refuses it for {name!r}: {error}") from error
