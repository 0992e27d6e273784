"""Numbers as operators read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.numbers import plain_number


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 6, "0"),
        (1e-05, 6, "0.00001"),
        (1.23456789e-07, 6, "0.000000123457"),
        (1e6, 6, "1000000"),
        (1234567.0, 6, "1234570"),
        (120.0, 2, "120"),
        (0.5, 6, "0.5"),
        (-2e-09, 6, "-0.000000002"),
        (float("inf"), 6, "inf"),
        (float("nan"), 6, "nan"),
    ],
)
def test_a_number_is_a_plain_decimal(value: float, digits: int, text: str) -> None:
    assert plain_number(value, digits) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_one(value: float) -> None:
    text = plain_number(value)
    assert set(text) <= set("-.0123456789")
    assert float(text) == pytest.approx(value, rel=1e-5, abs=0)
