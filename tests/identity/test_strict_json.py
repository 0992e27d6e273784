"""JSON of strangers: one kind of error for whatever is wrong with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.strict_json import json_object, strings


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"1",
        b"\xff\xfe{}",
        b'{"a": "\xff"}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b"[" * 100_000,
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_is_not_one_clean_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        json_object(text)
    assert caught.value.__cause__ is None
    assert len(str(caught.value)) < 40


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    groups = [f'[team {number}] {{x}} \\" [' for number in range(100)]
    assert json_object(json.dumps({"groups": groups}).encode()) == {"groups": groups}


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert json_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(), lambda inner: st.lists(inner), max_leaves=8
)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_any_other_object_is_what_the_json_module_reads(value: dict[str, object]) -> None:
    assert json_object(json.dumps(value).encode()) == value
    assert json_object(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_raise_nothing_but_value_error(text: bytes) -> None:
    try:
        assert isinstance(json_object(text), dict)
    except ValueError:
        pass


def test_lists_of_strings_lose_their_doubles_and_nothing_is_none() -> None:
    assert strings(["b", "a", "b"]) == ("b", "a")
    assert strings(None) == ()
    for wrong in ("a", {"a": 1}, ["a", 1], ["a", None], 3):
        with pytest.raises(ValueError):
            strings(wrong)
