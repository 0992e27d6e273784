"""Numbers as operators read them, and as JSON has them."""

import ast
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcproxy
from mcproxy.kube.numbers import json_float, plain_number


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


class TestJSONFloat:
    @pytest.mark.parametrize("text", ["1e300", "-1e300", "1.50", "-0.0", "1e-400", "0.1e-5"])
    def test_it_is_the_number_that_msgspec_has_by_itself(self, text: str) -> None:
        assert msgspec.json.Decoder(float_hook=json_float).decode(text) == msgspec.json.decode(text)

    @pytest.mark.parametrize("text", ["1e400", "-1e400"])
    def test_what_no_float_can_hold_is_refused_as_msgspec_refuses_it(self, text: str) -> None:
        for decoder in (msgspec.json.Decoder(float_hook=json_float), msgspec.json.Decoder()):
            with pytest.raises(msgspec.ValidationError, match="Number out of range"):
                decoder.decode(text)

    def test_every_decoder_of_any_values_has_it(self) -> None:
        """One without it takes seconds for a body of numbers like 1e300."""
        without = []
        for path in sorted(Path(mcproxy.__file__).parent.rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith("msgspec.json."):
                    continue
                function, keywords = ast.unparse(call.func), {each.arg: each.value for each in call.keywords}
                if function.endswith(".Decoder"):
                    kind = call.args[0] if call.args else None
                elif function.endswith(".decode"):
                    kind = keywords.get("type")
                else:
                    continue
                if (kind is None or "Any" in ast.unparse(kind)) and "float_hook" not in keywords:
                    without.append(f"{path.name}:{call.lineno}")
        assert without == []
