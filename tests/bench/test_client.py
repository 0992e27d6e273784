"""The harness's client reads answers whole; the origin writes what the client expects."""

from __future__ import annotations

import pytest

from bench.client import Answer, parse_answer, unchunk
from bench.origin import CHUNK, chunk, event

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


@pytest.mark.parametrize("whole", [LENGTH, CHUNKED])
def test_an_answer_is_whole_only_at_its_end(whole: bytes) -> None:
    complete = len(whole) - (2 if whole is CHUNKED else 0)  # the CRLF after the last chunk may still come
    assert parse_answer(whole) == Answer(200, b"hello")
    assert all(parse_answer(whole[:length]) is None for length in range(complete))


def test_chunks_decode_to_what_was_put_in() -> None:
    assert unchunk(chunk(CHUNK) + chunk(event()) + b"0\r\n\r\n") == CHUNK + event()


def test_the_first_event_is_about_a_kilobyte_and_one_line() -> None:
    assert 900 < len(event()) < 1100
    assert event().count(b"\n") == 1
