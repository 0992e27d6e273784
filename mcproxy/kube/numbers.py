"""Numbers in a form for operators."""

from __future__ import annotations


def plain_number(value: float, digits: int = 6) -> str:
    """Return a number with so many significant digits in decimal notation: 0.00001 and 1200000, never 1e-05 or
    1.2e+06.
    """
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    from decimal import Decimal

    return format(Decimal(text), "f")
