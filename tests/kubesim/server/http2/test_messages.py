"""Header fields as an HTTP/1.1 head, and HTTP/1.1 responses read back."""

from __future__ import annotations

import pytest

from kubesim.server.http2_stream import MalformedError, RequestHead, ResponseReader

PSEUDO = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/a?b"), (b":authority", b"host:1")]


def read(data: bytes, *, head_only: bool = False) -> ResponseReader:
    reader = ResponseReader(head_only=head_only)
    for index in range(len(data)):
        reader.feed(data[index : index + 1])
    return reader


def test_a_request_head() -> None:
    head = RequestHead([*PSEUDO, (b"accept", b"*/*"), (b"host", b"host:1")], end_stream=True)
    assert head.data == b"GET /a?b HTTP/1.1\r\nhost: host:1\r\naccept: */*\r\n\r\n"
    assert not head.chunked


def test_content_of_unknown_length_is_chunked() -> None:
    assert RequestHead(PSEUDO, end_stream=False).chunked
    assert RequestHead(PSEUDO, end_stream=False).data.endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n")
    assert not RequestHead([*PSEUDO, (b"content-length", b"3")], end_stream=False).chunked


@pytest.mark.parametrize("field", [(b":path", b"/a HTTP/1.1"), (b":method", b"GET /"), (b":path", b"")])
def test_what_would_not_be_one_request_line_is_refused(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(MalformedError):
        RequestHead([*PSEUDO, field], end_stream=True)


def test_chunks_are_decoded_and_fields_of_the_connection_left_out() -> None:
    reader = read(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nX-A: b\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    assert reader.heads == [(200, [(b"x-a", b"b")])]
    assert b"".join(reader.content) == b"abc"
    assert reader.complete


def test_an_interim_response_comes_before_the_final_one() -> None:
    reader = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
    assert [status for status, _ in reader.heads] == [100, 204]
    assert reader.complete


@pytest.mark.parametrize(
    ("data", "head_only", "complete", "until_close"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", True, True, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", False, False, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False, True, False),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", False, True, False),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", False, False, True),
    ],
    ids=["HEAD", "within content", "empty", "304", "until close"],
)
def test_where_a_response_ends(data: bytes, head_only: bool, complete: bool, until_close: bool) -> None:
    reader = read(data, head_only=head_only)
    assert (reader.complete, reader.until_close) == (complete, until_close)


@pytest.mark.parametrize("data", [b"\x16\x03\x01garbage\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"])
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        read(data)
