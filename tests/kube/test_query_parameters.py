"""Query strings as Go's net/url and apimachinery read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.query_parameters import boolean, parse_query


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
