"""Query strings as Go's net/url and apimachinery read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.query_parameters import boolean, parse_query, without_dropped_pairs


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (b"", {}),
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=1&a=2", {"a": "1"}),
        (b"a", {"a": ""}),
        (b"a=b=c", {"a": "b=c"}),
        (b"labelSelector=app+in+%28a%2Cb%29", {"labelSelector": "app in (a,b)"}),
        (b"%77atch=true", {"watch": "true"}),
        (b"a=1;b=2&c=3", {"c": "3"}),
        (b"a=%zz&c=3", {"c": "3"}),
        (b"a=%ff", {"a": "\ufffd"}),
    ],
)
def test_queries(query: bytes, found: dict[str, str]) -> None:
    assert parse_query(query) == found


@pytest.mark.parametrize(("text", "value"), [(None, False), ("", True), ("False", False), ("0", False), ("no", True)])
def test_booleans(text: str | None, value: bool) -> None:
    assert boolean(text) is value


@given(st.binary(max_size=60))
def test_any_query_is_read(query: bytes) -> None:
    assert len(parse_query(query)) <= query.count(b"&") + 1


@pytest.mark.parametrize(
    ("target", "left"),
    [
        (b"/a", b"/a"),
        (b"/a?", b"/a?"),
        (b"/a;b?c", b"/a;b?c"),
        (b"/a?b=1;c=2", b"/a"),
        (b"/a?b=1;c=2&d=e", b"/a?d=e"),
        (b"/a?d=%2F&b=%2", b"/a?d=%2F"),
        (b"/a?%=&d=?", b"/a?d=?"),
    ],
)
def test_pairs_that_go_drops_are_left_out(target: bytes, left: bytes) -> None:
    assert without_dropped_pairs(target) == left
    assert parse_query(target.partition(b"?")[2]) == parse_query(left.partition(b"?")[2])
    assert without_dropped_pairs(left) is left
