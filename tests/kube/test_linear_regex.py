"""Patterns for paths: they match as `re` does, in linear time, or are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.kube.linear_regex import LinearRegex, PatternError


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        ("/a", b"/a", ()),
        ("/a", b"/ab", None),
        ("^/a$", b"/a", ()),
        ("/something(/|$)(.*)", b"/something", (b"", b"")),
        ("/something(/|$)(.*)", b"/something/x/y", (b"/", b"x/y")),
        ("/something(/|$)(.*)", b"/somethings", None),
        (r"/.*\.(php|html?)", b"/a.php/b.htm", (b"htm",)),
        (r"/v[0-9]+/(\w+)/.*", b"/v12/pods/", (b"pods",)),
        (r"/([^/]{2,3})/x", b"/abcd/x", None),
        ("(?i)/Foo[a-c]", b"/fOOB", ()),
        ("/Foo", b"/foo", None),
        ("/(a+?)(a*)", b"/aaa", (b"a", b"aa")),
        ("/(a|ab)(c|bcd)?", b"/abcd", (b"a", b"bcd")),
        ("/straße/.", "/straße/x".encode(), ()),
        (r"/[\]\-a-]+", b"/]-a", ()),
        ("/.", b"/\n", ()),
        ("", b"", ()),
        ("/(a)|/b", b"/b", (b"",)),
    ],
)
def test_matches_and_captures(pattern: str, text: bytes, groups: tuple[bytes, ...] | None) -> None:
    regex = LinearRegex(pattern)
    assert regex.matches(text) is (groups is not None)
    assert regex.captured(text) == (None if groups is None else (text, *groups))


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "[]", "[b-a]", r"[\d-z]", "*a", "a**", "a{2}{3}", "a{3,2}", "a{1000}", "(a*)*", "(a|b?)+",
        r"(a)\1", "(?=a)", "(?<n>a)", "(?P<n>a)", r"\pL", r"\b", "\\", "a^b", "[[:alpha:]]", "[ä]", "$*",
        "((((((((((a{9}){9}){9}))))))))", "(" * 30 + ")" * 30, "()" * 21,
        "(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)a(a|b)*",
    ],
)  # fmt: skip
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        LinearRegex(pattern)


_ATOM = st.sampled_from(["a", "b", "/", ".", "[ab]", "[^a]", "(?:a|bc)", "(a|ab)", "(b)", "$"])
_SIGN = st.sampled_from(["", "", "", "*", "+", "?", "{1,2}", "*?", "??"])
_SEQUENCE = st.lists(st.tuples(_ATOM, _SIGN), max_size=6).map(
    lambda parts: "".join(atom + ("" if atom == "$" else sign) for atom, sign in parts)
)


@settings(max_examples=400)
@given(st.lists(_SEQUENCE, min_size=1, max_size=3), st.text("abc/", max_size=8))
def test_it_agrees_with_re(parts: list[str], text: str) -> None:
    pattern = "|".join(parts)
    regex = LinearRegex(pattern)
    found = re.fullmatch(pattern.replace("$", r"\Z").encode(), text.encode(), re.DOTALL)
    captured = regex.captured(text.encode())
    assert regex.matches(text.encode()) is (captured is not None) is (found is not None)
    if found is not None and captured is not None and "(" not in pattern.replace("(?:", ""):
        assert captured == (text.encode(),)


@given(st.sampled_from(["(a|ab)(c|bcd)(d*)", "(a+)(b?)(a*)(.*)", "([^/]*)/(.*)", "(a*?)(a*)(b|$)", "(.*)b(.*)"]),
       st.text("abcd/", max_size=9))  # fmt: skip
def test_groups_capture_what_those_of_re_do(pattern: str, text: str) -> None:
    found = re.fullmatch(pattern.replace("$", r"\Z").encode(), text.encode())
    expected = None if found is None else (text.encode(), *(found.groups()))
    assert LinearRegex(pattern).captured(text.encode()) == expected


def test_a_pattern_that_makes_backtracking_exponential_takes_one_step_for_each_byte() -> None:
    """`re` would need 2^10000 steps."""
    regex = LinearRegex("/(a|aa)+(a|aa)+b")
    assert not regex.matches(b"/" + b"a" * 10_000)
    assert regex.captured(b"/" + b"a" * 10_000 + b"b") is not None
