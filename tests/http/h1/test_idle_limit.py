"""For how long an idle connection is kept where the upstream closes it sooner than `idleTimeout`."""

from __future__ import annotations

import pytest

from mcproxy.http.h1.h1_pool import shorter_idle_time
from mcproxy.http.h1.head_parser import parse_response_head


@pytest.mark.parametrize(("seconds", "kept"), [(60.0, 54.0), (5.0, 4.0), (3.0, 2.0), (1.0, 0.5)])
def test_it_is_kept_for_less_time(seconds: float, kept: float) -> None:
    assert shorter_idle_time(seconds) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"timeout=5", 5),
        (b"max=100, Timeout = 60", 60),
        (b'timeout="7", max=3', 7),
        (b"max=5", 0),
        (b"xtimeout=5", 0),
        (b"timeout=-5", 0),
        (b"timeout=99999999", 0),
        (b"", 0),
    ],
)
def test_what_keep_alive_announces(value: bytes, seconds: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nKeep-Alive: %b\r\nContent-Length: 0\r\n\r\n" % value
    head = parse_response_head(raw, b"GET")
    assert head.idle_limit == seconds
    assert b"Keep-Alive" not in head.fields
