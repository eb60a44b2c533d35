"""Which column holds what."""

from typing import Any

import pytest

from drumroll.api.sources import Columns
from drumroll.data.layouts import MISSING, lookup, map_columns
from drumroll.errors import DataError, JobError


def _map(row: dict[str, Any], columns: Columns = Columns()) -> tuple[str, str, str | None, str | None, str | None]:  # noqa: B008
    found = map_columns([row], row, columns, field="data.train")
    return found.layout, found.prompt, found.answer, found.tools, found.metadata


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"data_source": "x", "prompt": [], "ability": "", "reward_model": {"ground_truth": "1"}, "extra_info": {}},
            ("verl", "prompt", "reward_model.ground_truth", None, "extra_info"),
        ),
        (
            {"prompt": [], "env_class": "gsm8k", "reward_spec": {"ground_truth": "1"}},
            ("skyrl", "prompt", "reward_spec.ground_truth", None, None),
        ),
        ({"prompt": "", "label": "1", "metadata": {}, "tools": []}, ("slime", "prompt", "label", "tools", "metadata")),
        ({"prompt": "", "solution": "1"}, ("trl", "prompt", "solution", None, None)),
        ({"prompt": "", "difficulty": 3}, ("trl", "prompt", None, None, None)),
        ({"messages": [], "answer": "1"}, ("areal", "messages", "answer", None, None)),
        ({"messages": [], "tag": "", "ground_truth": "1"}, ("roll", "messages", "ground_truth", None, None)),
        ({"input": "", "label": "1"}, ("openrlhf", "input", "label", None, None)),
        ({"question": "", "answer": "1"}, ("gsm8k", "question", "answer", None, None)),
        ({"messages": [], "label": "1"}, ("slime", "messages", "label", None, None)),
        ({"messages": []}, ("trl", "messages", None, None, None)),
    ],
)
def test_a_known_layout_is_recognised(row: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert _map(row) == expected


def test_overrides_win_and_go_into_nested_columns() -> None:
    row = {"prompt": "", "label": "1", "a": {"b": {"text": "", "gold": "2"}}, "schemas": [], "info": {}}
    wanted = Columns(prompt="a.b.text", answer="a.b.gold", tools="schemas", metadata="info", json_columns=["label"])
    assert _map(row, wanted) == ("custom", "a.b.text", "a.b.gold", "schemas", "info")


def test_an_override_that_no_row_has_names_the_field_and_a_near_column() -> None:
    with pytest.raises(
        JobError, match=r"data\.train\.columns\.answer: no row has a column 'lable'.*did you mean 'label'"
    ):
        _map({"prompt": "", "label": "1"}, Columns(answer="lable"))
    with pytest.raises(JobError, match=r"columns\.jsonColumns: no row has a column 'x\.y'; there are 'prompt'$"):
        _map({"prompt": ""}, Columns(json_columns=["x.y"]))


def test_unknown_columns_are_refused_with_what_to_set() -> None:
    with pytest.raises(
        DataError, match=r"no column of 'text' is a known prompt column .* set data\.train\.columns\.prompt"
    ):
        _map({"text": ""})


def test_two_possible_answers_are_no_guess() -> None:
    with pytest.raises(
        DataError, match=r"'answer', 'label' could each hold the answer; set data\.train\.columns\.answer"
    ):
        _map({"prompt": "", "answer": "1", "label": "2"})
    assert _map({"prompt": "", "answer": "1", "label": "2"}, Columns(answer="label"))[2] == "label"


def test_lookup_prefers_the_column_of_that_very_name() -> None:
    assert lookup({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert lookup({"a.b": {"c": 3}}, "a.b.c") == 3
    assert lookup({"a": {"b": None}}, "a.b") is None
    assert lookup({"a": 5}, "a.b") is MISSING
    assert lookup({"a": {}}, "a.b.c") is MISSING
    assert lookup({}, "a") is MISSING


def test_a_dot_goes_into_columns_that_are_json() -> None:
    row = {
        "prompt": "",
        "reward_model": '{"ground_truth": "1"}',
        "task": '{"gold": {"text": "2"}}',
        "other": "not {json",
    }
    opened = ["reward_model", "task", "other"]
    assert _map(row, Columns(json_columns=opened))[:3] == ("verl", "prompt", "reward_model.ground_truth")
    assert _map(row, Columns(json_columns=opened, answer="task.gold.text"))[2] == "task.gold.text"
    with pytest.raises(JobError, match=r"no row has a column 'task\.gold\.text'"):
        _map(row, Columns(answer="task.gold.text"))
