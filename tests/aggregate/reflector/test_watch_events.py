"""Lines from pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.reflector.collection import LineSplitter, LineTooLong


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"."))), st.lists(st.integers(0, 60)))
def test_however_it_is_cut_the_lines_are_the_same(lines: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found: list[bytes] = []
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for start, end in itertools.pairwise(places):
        found += splitter.feed(text[start:end])
    assert found == [line for line in lines if line]


def test_a_line_without_end_is_an_error() -> None:
    splitter = LineSplitter(limit=100)
    assert splitter.feed(b"x" * 100 + b"\n" + b"y" * 60) == [b"x" * 100]
    with pytest.raises(LineTooLong):
        splitter.feed(b"y" * 41)


def test_a_short_line_behind_a_long_one_begins_anew() -> None:
    splitter = LineSplitter(limit=100)
    for _ in range(10):
        assert splitter.feed(b"x" * 60) == []
        assert splitter.feed(b"\n") == [b"x" * 60]
