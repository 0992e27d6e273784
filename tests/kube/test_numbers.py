"""Numbers as operators read them, and as JSON has them."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.inspect import AnyType, FloatType, StructType, Type, type_info

import mcproxy
from mcproxy.kube.numbers import json_float, plain_number

PACKAGE = Path(mcproxy.__file__).parent


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

    def test_every_decoder_of_numbers_has_it(self) -> None:
        """One without it takes seconds for a body of numbers like 1e300, however deep in its type they are."""
        without = []
        for path in sorted(PACKAGE.rglob("*.py")):
            text = path.read_text("utf-8")
            if "msgspec.json" not in text:
                continue
            names = vars(import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)))
            found = {name: getattr(each, "__self__", each) for name, each in names.items()}  # of a method: its decoder
            decoders = {name: each for name, each in found.items() if isinstance(each, msgspec.json.Decoder)}
            without += [
                f"{path.name}: {name}"
                for name, each in decoders.items()
                if each.float_hook is None and holds_numbers(type_info(each.type))
            ]
            for call in ast.walk(ast.parse(text)):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "msgspec.json.decode":
                    kinds = [ast.unparse(each.value) for each in call.keywords if each.arg == "type"] or ["Any"]
                    # A type that is a parameter may be any class of the module.
                    structs = [each for each in names.values() if isinstance(each, type) and issubclass(each, Struct)]
                    types = structs if kinds == ["expected"] else [eval(kinds[0], {**names, "Any": Any})]
                    without += [f"{path.name}:{call.lineno}" for each in types if holds_numbers(type_info(each))]
        assert without == []


def holds_numbers(info: Type, seen: tuple[type, ...] = ()) -> bool:
    """Return whether values of a type may have numbers that are no integers."""
    if isinstance(info, AnyType | FloatType):
        return True
    if isinstance(info, StructType):
        fields = () if info.cls in seen else info.fields
        return any(holds_numbers(each.type, (*seen, info.cls)) for each in fields)
    inner = [getattr(info, name, ()) for name in ("types", "item_types")]
    inner += [(getattr(info, name),) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
    return any(holds_numbers(each, seen) for group in inner for each in group)
