"""Quantities as exact numbers."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumroll.api.quantity import QUANTITY_PATTERN, parse_quantity, quantity_bytes


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8Gi", 8 << 30),
        ("500m", Decimal("0.5")),
        ("1000m", 1),
        ("1.5Gi", 3 << 29),
        ("1024Mi", 1 << 30),
        ("2E", 2 * 10**18),
        ("2e3", 2000),
        ("1E2", 100),
        ("5e-1", Decimal("0.5")),
        (".5", Decimal("0.5")),
        ("7.", 7),
        ("3k", 3000),
        ("250u", Decimal("0.00025")),
        ("9n", Decimal("9e-9")),
        (4, 4),
    ],
)
def test_a_quantity_is_its_exact_amount(text: str | int, amount: Decimal | int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "8GB", "-1", "1 Gi", "1K", "Gi", "1e999", "1ke3", "0x10", "1\n", "٣", "1..2"])
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 8Gi or 500m"):
        parse_quantity(text)


def test_bytes_are_rounded_up() -> None:
    assert quantity_bytes("1500m") == 2
    assert quantity_bytes("8Gi") == 8 << 30


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True).filter(lambda text: text.isascii()))
def test_what_the_schema_accepts_can_be_parsed(text: str) -> None:
    assert parse_quantity(text.strip("\n")) >= 0


@given(st.text(alphabet="0123456789.KMGEieukmn+-", max_size=8))
def test_the_parser_accepts_what_the_schema_accepts(text: str) -> None:
    try:
        parse_quantity(text)
        parses = True
    except ValueError:
        parses = False
    assert parses == bool(re.fullmatch(QUANTITY_PATTERN, text))
