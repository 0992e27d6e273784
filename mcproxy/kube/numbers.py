"""Converts numbers of JSON to floats in bounded time, and formats numbers for operators."""

from __future__ import annotations

_INFINITE = float("inf")


def json_float(text: str) -> float:
    """Return the value of a non-integer number: the `float_hook` of all decoders of a peer's numbers.

    msgspec's own conversion takes some 15 us for each 1e300: seconds for the largest object. Raises ValueError for a
    number that no float can hold, as msgspec does.
    """
    number = float(text)
    if number == _INFINITE or number == -_INFINITE:
        raise ValueError("Number out of range")
    return number


def plain_number(value: float, digits: int = 6) -> str:
    """Format a number with `digits` significant digits in decimal notation: 0.00001 and 1200000, never 1e-05 or
    1.2e+06.
    """
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    from decimal import Decimal

    return format(Decimal(text), "f")
