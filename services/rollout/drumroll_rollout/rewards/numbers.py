"""Numbers as people and models write them: signs, currency, thousands separators, fractions, percent, a unit behind
them. Pure.

Exact: a number is a Fraction, so that digits never get lost or fused. A comma separates thousands only between groups
of three digits; a list of numbers is no number.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?|\.\d+"
_WORDS = r"(?!(?:pi|sqrt|or|and)\b)[A-Za-z°][A-Za-z°²³/.' -]*"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*[$€£¥]?\s*(?P<inner>[+-]?)\s*(?P<digits>{_DIGITS})\.?(?:[eE](?P<exponent>[+-]?\d{{1,3}}))?"
    rf"(?:\s*/\s*(?P<over>\d+))?\s*(?P<percent>%?)(?:\s+{_WORDS}|[$€£¥])?\s*[.,;:!]*"
)
_LATEX_FRACTION = re.compile(
    r"(?P<sign>[+-]?)\s*\\[dt]?frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<over>\d+)\s*\}[.,;:!]*"
)
_IN_TEXT = re.compile(rf"(?<![\w.,)])[+-]?\s?[$€£¥]?(?:{_DIGITS})(?:\s*/\s*\d+)?|(?:{_DIGITS})")
_MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    value: Fraction
    decimals: int | None
    """Digits after the point; None where it was written as a fraction."""
    percent: bool


def clean(text: str) -> str:
    """Without what only sets a number off: Unicode signs and spaces, emphasis, LaTeX spaces and escapes."""
    for old, new in (("\u2212", "-"), ("\u2013", "-"), ("\u00a0", " "), ("\u202f", " "), ("\u2009", " ")):
        text = text.replace(old, new)
    for old, new in ((r"\$", "$"), (r"\%", "%"), (r"\!", ""), (r"\,", ""), (r"\;", " "), (r"\ ", " "), ("{,}", ",")):
        text = text.replace(old, new)
    text = re.sub(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}", r" \1", text)
    return text.strip().strip("*_`").strip()


def as_number(text: str) -> Number | None:
    """The number that a text is, units and punctuation aside; None where it is anything else."""
    text = clean(text)
    if len(text) > _MAX_CHARACTERS:
        return None
    if len(text) > 2 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1].strip()
    fraction = _LATEX_FRACTION.fullmatch(text)
    if fraction:
        return _ratio(Fraction(int(fraction["top"])), fraction["over"], fraction["sign"] == "-", percent=False)
    match = _NUMBER.fullmatch(text)
    if match is None or (match["sign"] and match["inner"]):
        return None
    digits = match["digits"].replace(",", "")
    value = Fraction(Decimal(digits)) * Fraction(10) ** int(match["exponent"] or 0)
    negative = "-" in (match["sign"], match["inner"])
    if match["over"]:
        return _ratio(value, match["over"], negative, percent=bool(match["percent"]))
    decimals = len(digits.partition(".")[2])
    return Number(-value if negative else value, decimals, bool(match["percent"]))


def _ratio(top: Fraction, over: str, negative: bool, *, percent: bool) -> Number | None:
    if int(over) == 0:
        return None
    value = top / int(over)
    return Number(-value if negative else value, None, percent)


def last_number(text: str) -> str | None:
    """The last number written in a text, with its sign and fraction; a comma or point alone is none."""
    last = None
    for match in _IN_TEXT.finditer(clean(text)):
        last = match
    return None if last is None else last.group().strip()


def same_number(first: Number, second: Number) -> bool:
    """Equal values; a fraction also equals its decimal with six or more digits; 50 % is 50 and 0.5."""
    values = [first.value, first.value / 100] if first.percent else [first.value]
    others = [second.value, second.value / 100] if second.percent else [second.value]
    return any(_close(one, other, first, second) for one in values for other in others)


def _close(one: Fraction, other: Fraction, first: Number, second: Number) -> bool:
    if one == other:
        return True
    if (first.decimals is None) == (second.decimals is None):
        return False
    decimals = max(first.decimals or 0, second.decimals or 0)
    return decimals >= 6 and abs(one - other) <= Fraction(1, 2 * 10**decimals)
