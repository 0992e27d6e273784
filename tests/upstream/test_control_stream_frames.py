"""Responses over HTTP/2 that a server may send, well or not, frame by frame, without a network."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.http.client_stream import ConnectionClosed, RequestNotProcessed
from mcproxy.http.h2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, ErrorCode, frame
from mcproxy.http.h2.h2_stream import STREAM_WINDOW
from mcproxy.http.messages import UpstreamProtocolError
from mcproxy.upstream.control import request_head
from mcproxy.upstream.control_stream import ControlError, ControlStream
from mcproxy.upstream.endpoint import Endpoint
from tests.http.h2.client_harness import OK, H2ClientHarness, response
from tests.http.h2.raw import goaway, literal, rst_stream
from tests.upstream.fakes import some_endpoints


class Stage:
    def __init__(self) -> None:
        self.harness = H2ClientHarness()
        self.endpoint: Endpoint = some_endpoints(1)[0]

    def asks(self) -> tuple[ControlStream, Deferred[None], int]:
        """A request that was sent; its response, what waits for the head, and the number of the stream."""
        stream = self.harness.connection.new_request(lasting=True)
        answer = ControlStream(stream, self.endpoint, "/watch", self.harness.clock.seconds)
        stream.send_head(request_head("GET"), b"/watch", b"host", (), answer, 0.0)
        self.harness.gets()
        return answer, Deferred.fromCoroutine(answer.head()), stream.stream_id

    def sends(self, *data: bytes) -> None:
        self.harness.answers(*data)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def data(stream_id: int, content: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream_id, content)


def value_of(waiting: Deferred[Any]) -> Any:
    """The result, which must be there."""
    got: list[Any] = []
    waiting.addCallbacks(got.append, lambda why: got.append(why.value))
    assert got, "it still waits"
    return got[0]


def reading(answer: ControlStream) -> Deferred[bytes]:
    return Deferred.fromCoroutine(answer.read())


def test_the_head_and_the_pieces_of_a_read_come_together(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number, OK + literal(b"x-answer", b"yes")))
    assert value_of(head) is None
    assert (answer.status, answer.header(b"x-answer")) == (200, b"yes")
    waiting = reading(answer)
    assert not waiting.called
    stage.sends(data(number, b"one"), data(number, b"two"))
    assert value_of(waiting) == b"onetwo"
    stage.sends(data(number, b"three", end=True))
    assert [value_of(reading(answer)) for _ in range(3)] == [b"three", b"", b""]


def test_an_answer_in_one_read(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number), data(number, b"whole", end=True))
    assert value_of(head) is None
    assert value_of(Deferred.fromCoroutine(answer.read_all(5))) == b"whole"
    answer.close()
    assert stage.harness.resets() == []


def test_trailers_end_a_body(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number), data(number, b"body"))
    stage.sends(frame(HEADERS, END_HEADERS | END_STREAM, number, literal(b"x-checksum", b"1")))
    assert value_of(head) is None
    assert [value_of(reading(answer)) for _ in range(2)] == [b"body", b""]


@pytest.mark.parametrize(
    "block",
    [
        b"",
        literal(b":status", b"20"),
        OK + OK,
        OK + literal(b"Upper", b"x"),
        OK + literal(b"connection", b"close"),
        OK + literal(b"x", b"a\r\nb: c"),
        literal(b"x", b"y") + OK,
        literal(b":status", b"101"),
    ],
)
def test_a_head_that_is_malformed_ends_its_stream_alone(stage: Stage, block: bytes) -> None:
    _, other, _ = stage.asks()
    _, head, number = stage.asks()
    stage.sends(response(number, block))
    assert isinstance(value_of(head), UpstreamProtocolError)
    assert stage.harness.resets() == [ErrorCode.PROTOCOL_ERROR]
    assert not other.called


def sends_head(stage: Stage, number: int, fields: int, *, end: bool) -> None:
    """Send the head of a response with so many fields of 8 KB."""
    block = OK + b"".join(literal(b"x-%d" % n, b"y" * 8000) for n in range(fields))
    pieces = [block[at : at + 16384] for at in range(0, len(block), 16384)]
    stage.sends(frame(HEADERS, 0, number, pieces[0]))
    for piece in pieces[1:]:
        stage.sends(frame(9, END_HEADERS if end and piece is pieces[-1] else 0, number, piece))


def test_a_head_of_more_than_256_kib_ends_its_stream_alone(stage: Stage) -> None:
    _, head, number = stage.asks()
    sends_head(stage, number, 40, end=True)
    assert isinstance(value_of(head), UpstreamProtocolError)
    assert stage.harness.resets() == [ErrorCode.ENHANCE_YOUR_CALM]
    assert not stage.harness.violations


def test_a_head_of_a_mib_beyond_that_ends_the_connection_and_holds_no_more(stage: Stage) -> None:
    _, head, number = stage.asks()
    sends_head(stage, number, 165, end=False)
    assert isinstance(value_of(head), ConnectionClosed)
    assert stage.harness.violations


def test_a_stream_that_is_reset_in_its_body_gives_what_came_and_then_an_error(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number), data(number, b"begin"), rst_stream(number, ErrorCode.INTERNAL_ERROR))
    assert value_of(head) is None
    assert value_of(reading(answer)) == b"begin"
    error = value_of(reading(answer))
    assert isinstance(error, ControlError)
    assert error.cause == "e0 broke off the connection, or its answer, on /watch"
    answer.close()
    assert stage.harness.resets() == []


def test_a_body_shorter_than_its_length_is_an_error(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number, OK + literal(b"content-length", b"10")), data(number, b"begin"))
    stage.sends(data(number, b"", end=True))
    assert value_of(head) is None
    assert value_of(reading(answer)) == b"begin"
    assert isinstance(value_of(reading(answer)), ControlError)


def test_a_stream_that_goaway_leaves_out_was_not_processed(stage: Stage) -> None:
    _, head, _ = stage.asks()
    stage.sends(goaway(0))
    assert isinstance(value_of(head), RequestNotProcessed)


def test_a_reader_that_is_slow_opens_its_window_no_further(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number))
    assert value_of(head) is None
    window = sent = STREAM_WINDOW
    grown = 0
    while sent >= 16384:
        stage.sends(data(number, bytes(16384)))
        sent -= 16384
        updates = [each for each in stage.harness.gets() if each.kind == WINDOW_UPDATE and each.stream_id == number]
        for each in updates:
            sent += int.from_bytes(each.payload, "big")
            grown += 1
    assert answer._size < 256 * 1024 + 4 * 1024 * 1024
    assert answer._paused
    before = answer._size
    assert len(value_of(reading(answer))) == before
    assert [each for each in stage.harness.gets() if each.kind == WINDOW_UPDATE and each.stream_id == number]
    assert window == STREAM_WINDOW


def test_closing_resets_the_stream_and_ends_its_reader(stage: Stage) -> None:
    answer, head, number = stage.asks()
    stage.sends(response(number))
    assert value_of(head) is None
    waiting = reading(answer)
    answer.close("the endpoint is out")
    error = value_of(waiting)
    assert isinstance(error, ControlError)
    assert error.cause == "the endpoint is out"
    assert stage.harness.resets() == [ErrorCode.CANCEL]
    stage.sends(data(number, b"late"))
    answer.close()
    assert stage.harness.connection.usable


@pytest.mark.parametrize(("seconds", "doubted"), [(0.5, False), (2.0, True)])
def test_a_request_that_is_given_up_late_casts_doubt_on_a_silent_connection(
    stage: Stage, seconds: float, doubted: bool
) -> None:
    stage.asks()
    _, head, _ = stage.asks()
    stage.harness.passes(seconds)
    head.addErrback(lambda _: None)
    head.cancel()
    assert stage.harness.connection.usable is not doubted


def test_fields_stay_as_they_were_sent(stage: Stage) -> None:
    answer, head, number = stage.asks()
    fields = literal(b"warning", b'299 - "a"') + literal(b"warning", b'299 - "b"')
    stage.sends(response(number, OK + fields, end=True))
    assert value_of(head) is None
    assert answer.headers == ((b"warning", b'299 - "a"'), (b"warning", b'299 - "b"'))
