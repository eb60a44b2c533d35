"""Kubernetes quantities (8Gi, 500m, 1.5, 1e3) as exact numbers.

Two spellings of one amount are equal here: `1000m` and `1`, `1024Mi` and `1Gi`. Only unsigned quantities exist.
"""

import re
from decimal import ROUND_CEILING, Decimal

QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
"""Accepted alike by Python, by Rust's regex crate and by the RE2 of an API server."""

_PARTS = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE])?((?:[eE][+-]?[0-9]{1,2})?)")
_DECIMAL = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(quantity: str | int) -> Decimal:
    """The exact amount: `parse_quantity("8Gi")` is 8589934592, `parse_quantity("500m")` is 0.5.

    Raises:
        ValueError: not a quantity; the message says what one looks like.
    """
    match = _PARTS.fullmatch(str(quantity))
    if match is None or (match[2] and match[3]):
        raise ValueError(f"{quantity!r} is not a quantity: write a number with an optional unit, such as 8Gi or 500m")
    number, unit, exponent = Decimal(match[1] + match[3]), match[2] or "", match[3]
    if unit in _BINARY:
        return number * (1 << _BINARY[unit])
    return number if exponent else number.scaleb(_DECIMAL[unit])


def quantity_bytes(quantity: str | int) -> int:
    """The amount as whole bytes, rounded up.

    Raises:
        ValueError: not a quantity.
    """
    return int(parse_quantity(quantity).to_integral_value(ROUND_CEILING))
