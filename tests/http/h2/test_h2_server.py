"""The HTTP/2 server engine with a client on the `h2` package: requests and responses as a handler sees them."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost

from mcproxy.http.h2.frames import ErrorCode, rst_stream
from tests.http.h2.harness import REQUEST, Client, H2ServerHarness, frames, headers, request
from tests.support.logged import captured_logs


def test_a_request_and_its_response() -> None:
    client = Client()
    number = client.asks(fields=[("user-agent", "kubectl"), ("authorization", "Bearer t")])
    head = client.last.exchange.head
    assert (head.method, head.target, head.host, head.length) == (b"GET", b"/api/v1/pods", b"api.example.com", 0)
    assert head.fields == b"user-agent: kubectl\r\nauthorization: Bearer t\r\n"
    assert client.last.exchange.protocol == "HTTP/2.0"
    client.last.answer(b"hello")
    client.exchange()
    assert client.status == {number: 200}
    assert client.fields[number] == {b":status": b"200", b"x": b"y", b"content-length": b"5"}
    assert client.bodies == {number: b"hello"}
    assert client.ended == {number}
    assert not client.resets
    assert client.last.ends == 1
    assert client.last.exchange.completed
    assert not client.server.connection.streams


def test_a_handler_that_streams() -> None:
    client = Client()
    number = client.asks()
    exchange = client.last.exchange
    exchange.respond(200, b"OK", b"Content-Type: application/json\r\n", -1)
    exchange.write(b"a")
    exchange.write_pieces([b"b", b"c"], 2)
    client.exchange()
    assert number not in client.status  # sent with the first flush
    exchange.flush()
    client.exchange()
    assert client.fields[number] == {b":status": b"200", b"content-type": b"application/json"}
    assert client.bodies[number] == b"abc"
    exchange.write_shared(b"d", b"1\r\nd\r\n")
    client.exchange()
    assert client.bodies[number] == b"abcd"
    assert not client.ended
    exchange.end()
    client.exchange()
    assert client.ended == {number}
    assert exchange.bytes_out == 4
    assert exchange.completed


def test_what_was_written_between_two_flushes_is_one_frame() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    exchange = stage.last.exchange
    exchange.respond(200, b"", b"", -1)
    for _ in range(5):
        exchange.write(b"event\n")
    exchange.flush()
    assert [(one.kind, one.payload) for one in stage.gets()][1:] == [(0, b"event\n" * 5)]


def test_all_of_a_turn_is_one_write() -> None:
    stage = H2ServerHarness()
    writes: list[bytes] = []
    stage.wire.write = writes.append  # type: ignore[method-assign,assignment]
    stage.sends(request(1), request(3), request(5))
    for handled in stage.requests:
        handled.answer()
    stage.wire.turn()
    assert [len(frames(data)) for data in writes] == [6]


def test_a_response_without_a_body_ends_with_its_head() -> None:
    client = Client()
    for method, status, length, declared, expected in (
        ("HEAD", 200, 0, 1000, b"1000"),
        ("HEAD", 200, 0, None, None),
        ("GET", 204, 0, 5, None),
        ("GET", 304, 0, 7, b"7"),
        ("GET", 304, 0, None, None),
        ("GET", 200, 0, None, b"0"),
    ):
        number = client.asks(method)
        client.last.exchange.respond(status, b"", b"", length, declared)
        client.last.exchange.end()
        client.exchange()
        assert client.status[number] == status
        assert client.fields[number].get(b"content-length") == expected
        assert number in client.ended
        assert number not in client.bodies


def test_an_answer_to_head_has_the_length_of_what_is_not_sent() -> None:
    client = Client()
    number = client.asks("HEAD")
    client.last.answer(b"hello")
    client.exchange()
    assert client.fields[number][b"content-length"] == b"5"
    assert number in client.ended
    assert number not in client.bodies


def test_an_empty_answer() -> None:
    client = Client()
    number = client.asks()
    client.last.answer(b"")
    client.exchange()
    assert client.fields[number][b"content-length"] == b"0"
    assert client.ended == {number}


def test_an_answer_larger_than_all_windows_arrives_whole() -> None:
    client = Client()
    body = bytes(range(256)) * 1024
    numbers = [client.asks() for _ in range(3)]
    for handled in client.server.requests:
        handled.answer(body)
    client.exchange()
    assert [client.bodies[number] for number in numbers] == [body] * 3
    assert client.ended == set(numbers)


def test_no_field_of_a_connection_is_sent() -> None:
    client = Client()
    number = client.asks()
    client.last.exchange.answer(200, b"Connection: x\r\nX: y\r\nTransfer-Encoding: chunked\r\nKeep-Alive: 5\r\n", b"")
    client.exchange()
    assert client.fields[number] == {b":status": b"200", b"x": b"y", b"content-length": b"0"}


def test_trailers_of_a_response_go_to_a_client_that_takes_them() -> None:
    client = Client()
    for te, expected in (([("te", "trailers")], [(b"checksum", b"1")]), ([], None)):
        number = client.asks(fields=te)
        exchange = client.last.exchange
        exchange.respond(200, b"", b"", -1)
        exchange.write(b"x")
        exchange.end([(b"Checksum", b"1")])
        client.exchange()
        assert client.bodies[number] == b"x"
        assert client.trailers.get(number) == expected
        assert number in client.ended


def test_interim_responses_come_before_the_response() -> None:
    client = Client()
    number = client.asks("POST", fields=[("expect", "100-continue")], end=False)
    exchange = client.last.exchange
    assert exchange.head.expects_continue
    exchange.send_interim(100, b"Continue", b"")
    exchange.send_interim(103, b"", b"Link: </x>\r\n")
    client.exchange()
    assert client.informational[number] == [b"100", b"103"]
    exchange.respond(200, b"", b"", -1)
    exchange.send_interim(103, b"", b"")
    exchange.end()
    client.exchange()
    assert client.informational[number] == [b"100", b"103"]
    assert client.status[number] == 200


def test_a_response_that_breaks_off_is_reset() -> None:
    client = Client()
    number, other = client.asks(), client.asks()
    exchange = client.server.requests[0].exchange
    exchange.respond(200, b"", b"", -1)
    exchange.write(b"half")
    exchange.flush()
    exchange.abort()
    client.exchange()
    assert client.resets == {number: ErrorCode.INTERNAL_ERROR}
    assert not client.ended
    assert client.server.requests[0].ends == 1
    assert not exchange.completed
    client.last.answer()
    client.exchange()
    assert client.ended == {other}


def test_a_client_that_resets_a_stream_cancels_that_request_alone() -> None:
    client = Client()
    number, other = client.asks(), client.asks()
    client.h2.reset_stream(number, 8)
    client.exchange()
    assert [handled.cancellations for handled in client.server.requests] == [1, 0]
    assert client.server.requests[0].ends == 1
    client.server.requests[0].answer()  # comes too late and does nothing
    client.last.answer()
    client.exchange()
    assert client.status == {other: 200}


def test_a_connection_that_ends_cancels_all_its_requests() -> None:
    for end in (ConnectionDone, ConnectionLost):
        stage = H2ServerHarness()
        stage.sends(request(1), request(3))
        stage.wire.lose(end)
        assert [(handled.cancellations, handled.ends) for handled in stage.requests] == [(1, 1), (1, 1)]
        assert not stage.factory.connections
        assert not stage.connection.streams
        stage.last.answer()


def test_a_request_that_is_reset_in_the_same_read_begins_nothing() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1), rst_stream(1, ErrorCode.CANCEL), request(3))
    assert [handled.exchange.head.target for handled in stage.requests] == [b"/3"]


def test_requests_are_handled_before_those_of_the_next_read() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1))
    stage.sends(request(3), request(5))
    assert [handled.exchange.head.target for handled in stage.requests] == [b"/1", b"/3", b"/5"]


def test_what_http_1_refuses_has_the_same_response() -> None:
    client = Client(target_bytes=100, headers=5)
    for method, path, fields, status in (
        ("TRACE", "/", (), 405),
        ("GET", "/" + 200 * "x", (), 414),
        ("POST", "/", [("expect", "magic")], 417),
        ("GET", "/", [(f"x-{n}", "y") for n in range(6)], 431),
        ("GET", "/", [("x-large", 70_000 * "y")], 431),
        ("GET", "/a#b", (), 400),
    ):
        number = client.asks(method, path, fields)
        assert client.status[number] == status
        assert client.fields[number][b"content-type"] == b"text/plain"
        assert int(client.fields[number][b"content-length"]) == len(client.bodies[number]) > 0
        assert number in client.ended
    assert not client.server.requests
    assert not client.resets
    number = client.asks()
    client.last.answer()
    client.exchange()
    assert client.status[number] == 200


def test_a_refused_request_that_is_not_whole_is_not_wanted() -> None:
    client = Client()
    number = client.asks("TRACE", "/", end=False)
    assert client.status[number] == 405
    assert number in client.ended
    assert not client.resets
    client.server.passes(3)
    client.exchange()
    assert client.resets == {number: ErrorCode.NO_ERROR}


def test_a_malformed_request_is_reset_and_reaches_nobody() -> None:
    stage = H2ServerHarness()
    stage.sends(headers(1, b"\x82\x87\x84\x41\x01h" + b"\x00\x01A\x01b"))  # an upper-case name
    [reset] = stage.gets()
    assert (reset.kind, reset.stream_id, reset.code) == (3, 1, ErrorCode.PROTOCOL_ERROR)
    assert not stage.requests
    stage.sends(request(3))
    assert len(stage.requests) == 1


def test_streams_beyond_the_limit_are_refused_and_their_fields_are_decoded() -> None:
    stage = H2ServerHarness(streams=2)
    stage.sends(request(1), request(3))
    stage.sends(headers(5, REQUEST + b"\x40\x01x\x01y"))  # x: y enters the table
    [reset] = stage.gets()
    assert (reset.kind, reset.stream_id, reset.code) == (3, 5, ErrorCode.REFUSED_STREAM)
    stage.sends(rst_stream(1, 8))
    stage.sends(headers(7, REQUEST + b"\xbe"))
    assert stage.last.exchange.head.fields == b"x: y\r\n"
    assert len(stage.requests) == 3


def test_trailers_of_a_request() -> None:
    client = Client()
    number = client.asks("POST", end=False)
    client.h2.send_data(number, b"body")
    client.h2.send_headers(number, [("checksum", "1"), ("authorization", "x")], end_stream=True)
    client.exchange()
    assert client.last.body == b"body"
    assert client.last.trailers == [(b"checksum", b"1")]


def test_what_the_handler_reads_before_it_is_there_is_kept() -> None:
    client = Client(attach=False)
    client.asks("POST", body=b"hello")
    exchange = client.last.exchange
    assert exchange.body_complete
    exchange.attach(client.last)
    assert client.last.body == b"hello"
    assert client.last.trailers == []


def test_a_watch_ends_between_two_events() -> None:
    client = Client()
    number = client.asks()
    exchange = client.last.exchange
    exchange.set_long_running()
    exchange.respond(200, b"", b"", -1)
    exchange.flush()
    exchange.write_shared(b"event\n", b"")
    exchange.end()
    client.exchange()
    assert client.bodies[number] == b"event\n"
    assert client.ended == {number}
    assert not client.resets


def test_a_client_that_opens_more_requests_than_it_may_is_told_of_once_a_minute() -> None:
    stage = H2ServerHarness(streams=2)
    with captured_logs() as events:
        for number in range(4):
            stage.sends(request(2 * number + 1))
    (line,) = [event for event in events if event["event"] == "streams_limit_reached"]
    assert (line["limit"], line["key"]) == (2, "limits.streams")
