"""What makes a row unusable."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumroll.data.checks import Example, Problem, check_row, report, without_nulls
from drumroll.data.layouts import ColumnMap

COLUMNS = ColumnMap("trl", "prompt", "answer", "tools", "metadata")
USER = {"role": "user", "content": "1+1?"}


def _check(
    row: dict[str, Any], columns: ColumnMap = COLUMNS, needs_answer: bool = True
) -> Example | list[tuple[str, str]]:
    found = check_row(row, 1, columns, needs_answer=needs_answer)
    return found if isinstance(found, Example) else [(problem.column, problem.what) for problem in found]


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        (None, "is null"),
        ("", "is empty"),
        (" \n", "is empty"),
        ([], "is an empty list"),
        (7, "is int, neither text nor a list of messages"),
        ("\ud800", "holds a lone surrogate, which is no text"),
        (["hello"], "has message 1 that is str, not a mapping with role and content"),
        ([USER, {"content": "x"}], "has message 2 without a role"),
        ([{"role": "user", "content": None}], "has message 1 (user) whose content is null"),
        ([{"role": "user"}], "has message 1 (user) whose content is null"),
        (
            [{"role": "user", "content": 5}],
            "has message 1 (user) whose content is int, neither text nor a list of parts",
        ),
        ([{"role": "user", "content": "\udfff"}], "has message 1 (user) with a lone surrogate, which is no text"),
        ([{"role": "user", "content": " "}, {"role": "user", "content": []}], "has no text in any message"),
    ],
)
def test_a_prompt_that_says_nothing_is_a_problem(prompt: Any, what: str) -> None:
    assert _check({"prompt": prompt, "answer": "2"}) == [("prompt", what)]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({}, "is missing"),
        ({"answer": None}, "is null"),
        ({"answer": " "}, "is empty"),
        ({"answer": []}, "is empty"),
        ({"answer": {"a": 1}}, "is a mapping; the reward needs text, a number, or a list of accepted answers"),
        ({"answer": float("nan")}, "is nan, which no answer can equal"),
        ({"answer": float("-inf")}, "is -inf, which no answer can equal"),
        ({"answer": ["4", None]}, "has a member that is null"),
        ({"answer": [""]}, "has a member that is empty"),
        ({"answer": [float("nan")]}, "has a member that is nan, which no answer can equal"),
    ],
)
def test_a_missing_answer_is_a_problem_where_the_reward_needs_one(row: dict[str, Any], what: str) -> None:
    assert _check({"prompt": "q", **row}) == [("answer", what)]
    assert isinstance(_check({"prompt": "q", **row}, needs_answer=False), Example)


@pytest.mark.parametrize("answer", ["2", 0, 2.5, False, ["1", "2"]])
def test_answers_may_be_text_numbers_or_lists(answer: Any) -> None:
    found = _check({"prompt": "q", "answer": answer})
    assert isinstance(found, Example)
    assert found.answer == answer


def test_all_problems_of_a_row_are_found_at_once() -> None:
    assert [column for column, _ in _check({"tools": 5})] == ["prompt", "answer", "tools"]  # type: ignore[union-attr]


def test_tools_may_be_text_that_is_json() -> None:
    found = _check({"prompt": "q", "answer": "1", "tools": '[{"name": "f", "x": null}]'})
    assert isinstance(found, Example)
    assert found.tools == [{"name": "f"}]
    for empty in (None, [], "", "[]"):
        found = _check({"prompt": "q", "answer": "1", "tools": empty})
        assert isinstance(found, Example)
        assert found.tools is None
    assert _check({"prompt": "q", "answer": "1", "tools": "{"})[0][0] == "tools"  # type: ignore[index]


def test_an_assistant_message_with_tool_calls_needs_no_content() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    found = _check({"prompt": [USER, call, USER], "answer": "1"})
    assert isinstance(found, Example)
    assert "content" not in found.prompt[1]


def test_json_columns_are_parsed_nested_ones_too_and_others_stay_text() -> None:
    """D8"""
    columns = ColumnMap("custom", "a.prompt", None, None, "metadata", ("a.prompt", "metadata", "n"))
    row = {
        "a": {"prompt": '[{"role": "user", "content": "x"}]', "k": 1},
        "metadata": '{"city": "Bergen"}',
        "n": 5,
        "t": "{}",
    }
    found = _check(row, columns)
    assert isinstance(found, Example)
    assert found.prompt == [{"role": "user", "content": "x"}]
    assert found.metadata == {"city": "Bergen"}
    assert found.columns["t"] == "{}"
    assert row["a"]["prompt"].startswith("[{")  # type: ignore[index]
    assert _check({"a": {"prompt": "q"}, "metadata": "{"}, columns)[0][0] == "a.prompt"  # type: ignore[index]


def test_a_dotted_json_column_of_nested_dotted_names_is_replaced() -> None:
    columns = ColumnMap("custom", "prompt", None, None, "a.b.c", ("a.b.c",))
    found = _check({"prompt": "q", "a.b": {"c": "[1]"}}, columns)
    assert isinstance(found, Example)
    assert found.metadata == [1]


def test_text_that_utf8_cannot_hold_is_a_problem_in_any_column() -> None:
    assert _check({"prompt": "q", "answer": "1", "x": {"y": "\ud800"}}) == [
        ("x", "holds a lone surrogate, which is no text")
    ]
    assert _check({"prompt": "q", "answer": "1", "\ud800": 1})[0][1].startswith("holds a lone")  # type: ignore[index]
    assert isinstance(_check({"prompt": "é", "answer": "1"}), Example)


def test_the_report_lists_the_first_rows_and_counts_the_rest() -> None:
    problems = [Problem(row, "prompt" if row % 2 else "answer", "is null") for row in range(1, 14)]
    text = str(report(problems, origin="f.jsonl", num_rows=20))
    assert text.startswith("f.jsonl: 13 of 20 rows cannot be used:\n  row 1, column 'prompt': is null")
    assert "row 10," in text
    assert "row 11," not in text
    assert "and 3 more" in text
    assert "Problems by column: 'prompt' 7, 'answer' 6." in text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["prompt", "answer", "tools", "metadata"]), _JSON))
def test_any_row_is_an_example_or_has_problems(row: dict[str, Any]) -> None:
    found = _check(row)
    assert isinstance(found, Example) or found
    assert "None" not in str(without_nulls([m for m in [getattr(found, "prompt", None)] if isinstance(m, list)]))
