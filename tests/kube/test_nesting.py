"""The depth of JSON, without recursion and in linear time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.nesting import TooDeep, depth, refuse_deep
from tests.support.processor_time import processor_time

values: Any = st.recursive(
    st.none() | st.integers() | st.text('ab"\\[]{}é/', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\[{', max_size=3), inner, max_size=3),
    max_leaves=30,
)


def real_depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(real_depth, value), default=0) if isinstance(value, list) else 0


@given(values, st.sampled_from([None, 1]), st.integers(0, 20))
def test_it_is_that_of_the_value(value: Any, indent: int | None, more: int) -> None:
    for _ in range(more):
        value = [value]
    assert depth(json.dumps(value, indent=indent).encode()) == real_depth(value)


@given(st.binary(max_size=60))
def test_any_bytes_have_one(data: bytes) -> None:
    assert depth(data) >= 0


def test_the_bound() -> None:
    refuse_deep(b"[" * 100 + b"]" * 100)
    refuse_deep(b"[" + b"[]," * 1000 + b"1]")
    refuse_deep(b'["' + b"[" * 1000 + b'"]')
    with pytest.raises(TooDeep, match="more than 100 levels"):
        refuse_deep(b"[" * 101 + b"]" * 101)
    with pytest.raises(TooDeep):
        refuse_deep(b'{"a":' * 3_000)


@pytest.mark.parametrize(
    "many", [b"[" * 100 + b"]" * 100 + b",", b"[],", b"[]", b'"",', b'"[",', b'{"a":', b'\\"', b"[[[[[]]]]],", b'"a\\']
)
def test_its_time_is_linear(many: bytes) -> None:
    data = b"[" * 101 + many * (300_000 // len(many))
    took = []
    for _ in range(3):
        with processor_time() as taken:
            depth(data)
        took.append(taken.seconds)
    assert min(took) < 0.05 * len(data) / 1e6 + 0.01
