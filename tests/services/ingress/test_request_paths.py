"""What a path means to rules: readings, dot segments, encodings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.ingress.request_paths import BadPath, canonical_rule, parse, unusual


@pytest.mark.parametrize(
    "path", [b"/", b"/foo", b"/foo/", b"/a.b/..c/d..", b"/.well-known/x", b"/a,b=c@d:e!$&'()*+~_-"]
)
def test_a_usual_path_is_its_own_canonical_form(path: bytes) -> None:
    found = parse(path)
    assert not unusual(path)
    assert (found.sent, found.canonical, found.readings) == (path, path, frozenset())


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (b"/a/../b", None),
        (b"/a/./b", b"/a/b"),
        (b"/a/%2E/b", b"/a/b"),
        (b"/a/b/..", None),
        (b"/a/b/.", b"/a/b/"),
        (b"/..", None),
        (b"/a/../..", None),
        (b"/%2e%2E/a", None),
        (b"/a/%2e%2e/b", None),
        (b"/a/.%2e/b%20c", None),
        (b"/a//../b", None),
    ],
)
def test_single_dots_are_removed_and_double_ones_refused(path: bytes, sent: bytes | None) -> None:
    if sent is None:
        with pytest.raises(BadPath):
            parse(path)
        return
    assert parse(path).sent == sent


@pytest.mark.parametrize(
    "path",
    [
        b"/a/..%2fb",
        b"/a/%2e%2e%2fb",
        b"/a\\..\\b",
        b"/a/..%5cb",
        b"/a/..;x/b",
        b"/a/.;/b",
        b"/a/%2e.;v=1",
        b"/..%2F",
        b"/a%2f..%2fb",
    ],
)
def test_a_dot_segment_that_only_some_servers_see_is_refused(path: bytes) -> None:
    with pytest.raises(BadPath):
        parse(path)


@pytest.mark.parametrize("path", [b"/%", b"/%4", b"/%zz", b"/a%00b", b"/%u0041"])
def test_a_malformed_encoding_is_refused(path: bytes) -> None:
    with pytest.raises(BadPath):
        parse(path)


def test_the_path_is_sent_byte_for_byte_where_nothing_is_to_be_resolved() -> None:
    found = parse(b"/%66oo/a%2Fb;v=1//%C3%A4")
    assert found.sent == b"/%66oo/a%2Fb;v=1//%C3%A4"
    assert found.canonical == b"/foo/a%2Fb;v=1//\xc3\xa4"
    assert b"/foo/a/b/\xc3\xa4" in found.readings


def test_an_encoded_percent_sign_makes_no_second_reading() -> None:
    found = parse(b"/a%25b")
    assert found.canonical == b"/a%25b"
    assert found.readings == frozenset()


def test_rules_are_canonical_too() -> None:
    assert canonical_rule("/%66oo") == b"/foo"
    assert canonical_rule("/straße") == "/straße".encode()
    assert canonical_rule("/stra%C3%9Fe") == "/straße".encode()
    for bad in ("/a/../b", "/a/%2e%2e", "/%zz"):
        with pytest.raises(BadPath):
            canonical_rule(bad)


_PIECES = st.sampled_from(
    [b"a", b"b", b"/", b"//", b".", b"..", b"%2e", b"%2F", b"%5c", b"\\", b";", b"%3b", b"%25", b"%61", b"%zz"]
)


@given(st.lists(_PIECES, max_size=12))
def test_no_reading_of_what_is_sent_leaves_the_path_that_was_matched(pieces: list[bytes]) -> None:
    """However a server splits, decodes and merges: it finds no dot segment to resolve."""
    try:
        found = parse(b"/" + b"".join(pieces))
    except BadPath:
        return
    once = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes((int(match[1], 16),)), found.sent)
    for text in (found.sent, once, once.replace(b"\\", b"/"), re.sub(rb";[^/]*", b"", once.replace(b"\\", b"/"))):
        assert not {b".", b".."} & set(text.split(b"/"))
    again = parse(found.sent)
    assert (again.sent, again.canonical, again.readings) == (found.sent, found.canonical, found.readings)


def test_a_long_path_of_many_readings_is_refused() -> None:
    """Working them out would take longer than a thousand requests do."""
    path = b"/a%2fb;c\\d//e/"
    assert len(parse(path).readings) > 10
    assert parse(path + b"x" * 1000).readings
    with pytest.raises(BadPath):
        parse(path + b"x" * 7900)
