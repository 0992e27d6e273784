"""Warning headers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.warnings import (
    MAX_OF_A_MEMBER,
    MAX_WARNINGS,
    SLOW,
    block,
    left_out_text,
    never_synced_text,
    refused,
    texts_of,
    unreachable,
    warning,
    warnings,
)
from mcproxy.net.wall_time import WallSeconds


def test_the_form() -> None:
    assert warning("cluster west: gone") == (b"Warning", b'299 - "cluster west: gone"')
    assert warning('a "b" \\') == (b"Warning", b'299 - "a \\"b\\" \\\\"')


def test_a_text_cannot_add_a_line_to_the_head() -> None:
    assert warning("a\r\nSet-Cookie: x\x00\x7f") == (b"Warning", b'299 - "a  Set-Cookie: x  "')


@given(st.text(max_size=2000))
def test_any_text_is_one_line_of_limited_length(text: str) -> None:
    name, value = warning(text)
    assert name == b"Warning"
    assert b"\r" not in value
    assert b"\n" not in value
    assert len(value) < 4200
    assert value.decode().startswith('299 - "')


def test_equal_texts_stand_once_and_many_are_counted() -> None:
    assert warnings(["a", "b", "a"]) == [warning("a"), warning("b")]
    many = warnings(str(index) for index in range(500))
    assert len(many) == MAX_WARNINGS
    assert many[-1] == warning("451 more warnings are not shown")
    assert block(warnings(["a", "b"])) == b'Warning: 299 - "a"\r\nWarning: 299 - "b"\r\n'


def test_what_is_said_of_members() -> None:
    away = unreachable(WallSeconds(1_700_000_000.0))
    text = "cluster west: unavailable since 2023-11-14T22:13:20Z, showing its last known objects"
    assert away.text("west", stale=True) == text
    assert away.text("west", stale=False) == "cluster west: unavailable since 2023-11-14T22:13:20Z"
    assert SLOW.text("west", stale=True) == "cluster west: did not answer in time, showing its last known objects"
    assert SLOW.text("west", stale=False) == "cluster west: did not answer in time, its objects are left out"
    assert refused("events").text("west", stale=True) == (
        "cluster west: the proxy may not list events there, showing its last known objects"
    )
    assert never_synced_text("west").startswith("cluster west: ")
    assert left_out_text("west", "no right") == "cluster west: its objects are left out: no right"


def test_the_warnings_of_a_member_are_read_as_they_are_written() -> None:
    deprecated = b'299 - "example.com/v1alpha1 Widget is deprecated; use example.com/v1 Widget"'
    (text,) = texts_of([(b"Warning", deprecated), (b"Date", b"x"), (b"warning", deprecated)])
    assert warning(text) == (b"Warning", deprecated)
    assert texts_of([(b"Warning", b'299 - "a, \\"b\\"", 299 - "c\\\\"')]) == ('a, "b"', "c\\")
    assert texts_of([(b"Warning", b"none"), (b"Warning", b'299 - "open'), (b"Warning", b"\xff")]) == ()
    assert len(texts_of([(b"Warning", b'299 - "%d"' % number) for number in range(99)])) == MAX_OF_A_MEMBER


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Zs", "Co", "Cn"]), max_size=99)
)
def test_what_is_written_is_read_back(text: str) -> None:
    assert texts_of([warning(text)]) == (text,)
