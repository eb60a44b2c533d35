"""The rule of the math reward, without processes."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from drumroll_rollout.rewards.math import (
    MathReward,
    boxed,
    final_answer,
    is_right,
    marked_answer,
)
from drumroll_rollout.rewards.numbers import as_number, last_number
from drumroll_rollout.rewards.rewards import Batch
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = [json.loads(line) for line in (Path(__file__).parent / "cases" / "R2_numbers.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[f"{number}-{row['why']}" for number, row in enumerate(ROWS, start=1)])
def test_r2_numbers_with_commas_signs_and_text(row: dict[str, object]) -> None:
    assert float(is_right(str(row["completion"]), [str(row["gold"])])) == row["reward"]


@pytest.mark.parametrize(
    ("gold", "completion", "right"),
    [
        ("x+1", r"so \boxed{1+x}", True),
        (r"\frac{1}{2}", r"\boxed{0.5}", True),
        (r"\sqrt{2}", r"\boxed{2^{1/2}}", True),
        (r"\sqrt{2}", r"\boxed{\sqrt{3}}", False),
        ("x+1", "we see that $x + 1$ is it", True),
        ("x+1", "we see nothing", False),
        ("1/3", r"\boxed{0.333333}", True),
        ("1/3", r"\boxed{0.33}", False),
        ("0.5", r"\boxed{\frac{1}{2}}", True),
        ("50", r"\boxed{50\%}", True),
        ("0.5", "#### 50%", True),
        ("12", r"\boxed{x = 12}", True),
        ("42", "#### 6*7 = 42", True),
        ("A", r"\boxed{\text{A}}", True),
        ("B", "#### **B**", True),
        ("B", "#### C", False),
        ("72", r"\boxed{71} no: #### 72", True),
        ("71", r"#### 72 no: \boxed{71}", True),
        ("1234", r"\boxed{1{,}234}", True),
        ("1234", "#### $1234$", True),
        ("-5", "#### -$5", True),
        ("-5", "#### $-5", True),
        ("5", "#### +-5", False),
        ("1.5e3", "#### 1500", True),
        ("12345678", "#### 12345679", False),
        ("7", r"\boxed{9^{9^{9^9}}}", False),
        ("7", r"\boxed{7" + "+0" * 600 + "}", False),
        ("3,4", r"\boxed{4,3}", True),
        ("#### 18", "#### 18", True),
        ("He has 5+1=6.\n#### 6", "#### 6", True),
        ("7", r"\boxed{7", True),
        ("7", r"\boxed 7", True),
        ("7", r"first \boxed{7}, then \boxed{", True),
    ],
)
def test_an_answer_is_judged_by_value(gold: str, completion: str, right: bool) -> None:
    assert is_right(completion, [gold]) is right


def test_any_accepted_answer_is_right() -> None:
    assert is_right("#### 4", ["3", "4"])
    assert not is_right("#### 5", ["3", "4"])
    assert not is_right("#### 5", [])


def test_nothing_after_the_last_marker_is_no_answer() -> None:
    assert marked_answer("72 #### ") == ""
    assert final_answer("72 #### ", number=True) is None
    assert boxed("none") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567", Fraction(1234567)),
        ("1,23", None),
        ("1234,567", None),
        (".5", Fraction(1, 2)),
        ("- 3", Fraction(-3)),
        ("5 km/h", Fraction(5)),
        ("5 pi", None),
        ("2x", None),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("3 / 4", Fraction(3, 4)),
        ("", None),
        ("9" * 500, None),
    ],
)
def test_numbers_are_exact_and_nothing_else_is_one(text: str, value: Fraction | None) -> None:
    number = as_number(text)
    assert (None if number is None else number.value) == value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 5-3, hence 2.", "2"),
        ("It is -2!", "-2"),
        ("From 1,234 to 2,000.", "2,000"),
        ("no, none", None),
        ("v1.5", "1.5"),
        ("costs $1,200.50 in all", "$1,200.50"),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert last_number(text) == number


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_right_exactly_when_they_are_equal(gold: int, answer: int) -> None:
    assert is_right(f"#### {answer:,}", [str(gold)]) is (gold == answer)
    assert is_right(f"so it is {gold:,}.", [str(gold)])
    assert is_right(rf"\boxed{{{gold}}}", [f"{gold:,}"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [r"\frac{", "}", "x", "^", "_", "1", "23", ",", "(", ")", r"\sqrt", "{", "=", "+", "$", "####"]
        ),
        max_size=10,
    )
)
def test_any_text_gets_a_judgement(parts: list[str]) -> None:
    assert is_right("".join(parts), ["72"]) in (True, False)


def test_r4_a_grader_that_fails_is_an_error_and_no_judgement() -> None:
    with pytest.raises(ValueError, match="nan or zoo"):
        is_right("#### 5", ["1/0"])


def test_each_row_is_scored_against_its_own_answer() -> None:
    batch = Batch(
        ["q"] * 3, ["#### 3", "#### 3", "#### 5"], [[]] * 3, [{"answer": 3}, {"answer": "4"}, {"answer": [4, 5]}]
    )
    assert MathReward().score(batch) == [(1.0, {}), (0.0, {}), (1.0, {})]
