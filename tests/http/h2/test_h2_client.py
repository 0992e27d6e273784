"""The HTTP/2 client engine: what it makes of an upstream's frames, and what it sends."""

from __future__ import annotations

import gc
import weakref

import pytest

from mcproxy.http.client_stream import (
    MAX_INTERIM,
    ConnectionClosed,
    HTTP1Required,
    RequestNotProcessed,
    ResponseTimeout,
)
from mcproxy.http.h2.frames import (
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    encode_settings,
    frame,
    goaway,
    ping,
    rst_stream,
    window_update,
)
from mcproxy.http.h2.h2_client import LARGEST_WINDOW, LEAST_FRAME, MAX_FIELDS
from mcproxy.http.h2.h2_stream import STREAM_WINDOW
from mcproxy.http.messages import CHUNKED, UpstreamProtocolError
from tests.http.h2.client_harness import OK, OK_LENGTH, H2ClientHarness, response
from tests.http.h2.harness import data, frames

MAX_CONCURRENT_STREAMS = 3


@pytest.fixture
def harness() -> H2ClientHarness:
    return H2ClientHarness()


class TestBeginning:
    def test_preface_settings_and_the_connections_window(self) -> None:
        harness = H2ClientHarness(begun=False)
        settings, window = frames(harness.first[len(PREFACE) :])
        pairs = [settings.payload[at : at + 6] for at in range(0, len(settings.payload), 6)]
        assert {int.from_bytes(pair[:2], "big"): int.from_bytes(pair[2:], "big") for pair in pairs} == {
            2: 0,  # no push
            4: 65536,
            6: 262144,
        }
        assert (window.kind, window.stream_id, window.number) == (WINDOW_UPDATE, 0, 16 * 1024 * 1024 - 65535)

    def test_requests_do_not_wait_for_the_upstreams_settings(self) -> None:
        harness = H2ClientHarness(begun=False)
        harness.asks()
        assert [sent.kind for sent in harness.gets()] == [HEADERS]

    def test_the_limit_of_streams(self) -> None:
        assert H2ClientHarness((MAX_CONCURRENT_STREAMS, 7)).limits == [7]
        assert H2ClientHarness((MAX_CONCURRENT_STREAMS, 2**31)).limits == [1000]

    @pytest.mark.parametrize(("value", "ends"), [(0, False), (1, True)])
    def test_a_server_may_not_enable_push(self, harness: H2ClientHarness, value: int, ends: bool) -> None:
        harness.asks()
        harness.gets()
        harness.answers(encode_settings([(ENABLE_PUSH, value)]))
        assert [sent.kind for sent in harness.gets()] == [GOAWAY if ends else SETTINGS]


class TestResponses:
    def test_head_and_whole_body_in_one_read(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks()
        harness.answers(response(1, OK_LENGTH + b"2"), data(1, b"ok", end=True))
        assert (answer.body, answer.trailers, answer.flushes) == (b"ok", [], 0)
        assert answer.head is not None
        assert (answer.head.status, answer.head.length, answer.head.declared_length) == (200, 2, 2)
        assert not harness.connection.streams
        assert harness.roomy == 1
        assert [sent.kind for sent in harness.gets()] == [HEADERS]  # the request's

    def test_head_and_body_apart(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks()
        harness.answers(response(1))
        assert answer.head is not None
        assert (answer.head.length, answer.flushes) == (CHUNKED, 1)
        harness.answers(data(1, b"a"), data(1, b"b"))
        assert (answer.body, answer.flushes, answer.trailers) == (b"ab", 2, None)
        harness.answers(data(1, b"", end=True))
        assert answer.complete

    def test_trailers(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks()
        harness.answers(response(1), data(1, b"a"), response(1, b"\x00\x01t\x01v", end=True))
        assert (answer.body, answer.trailers) == (b"a", [(b"t", b"v")])

    @pytest.mark.parametrize("method", [b"GET", b"HEAD"])
    def test_a_head_alone(self, harness: H2ClientHarness, method: bytes) -> None:
        _, answer = harness.asks(method)
        harness.answers(response(1, OK_LENGTH + b"5" if method == b"HEAD" else OK, end=True))
        assert answer.head is not None
        assert (answer.head.length, answer.complete) == (0, True)

    def test_interim_responses(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks()
        harness.answers(response(1, b"\x08\x03103"))
        assert (answer.informed, stream.began, answer.head) == ([103], False, None)
        harness.answers(response(1, end=True))
        assert answer.complete

    def test_more_interim_responses_than_anybody_needs(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks()
        harness.answers(*[response(1, b"\x08\x03103")] * (MAX_INTERIM + 1))
        assert isinstance(answer.failure, UpstreamProtocolError)
        assert harness.resets() == [ErrorCode.ENHANCE_YOUR_CALM]

    @pytest.mark.parametrize(
        "wrong",
        [
            data(1, b"x"),
            response(1) + response(1),
            response(1, OK_LENGTH + b"2") + data(1, b"abc"),
            response(1, OK_LENGTH + b"2") + data(1, b"a", end=True),
            response(1, OK_LENGTH + b"2") + data(1, b"a") + response(1, b"\x00\x01t\x01v", end=True),
            response(1, OK_LENGTH + b"2", end=True),
            response(1, b"\x8d" + b"\x82"),
            response(1, b"\x08\x03204") + data(1, b"a"),
        ],
    )
    def test_what_is_malformed_ends_the_stream_alone(self, harness: H2ClientHarness, wrong: bytes) -> None:
        _, answer = harness.asks()
        _, other = harness.asks()
        harness.answers(wrong)
        assert isinstance(answer.failure, UpstreamProtocolError)
        assert harness.resets() == [ErrorCode.PROTOCOL_ERROR]
        harness.answers(response(3, end=True))
        assert other.complete


class TestRequests:
    def test_a_body_and_its_end_without_trailers(self, harness: H2ClientHarness) -> None:
        stream, _ = harness.asks(b"PUT", length=CHUNKED)
        stream.send_body(b"ab")
        stream.end_body([(b"T", b"v")])
        head, body, end = harness.gets()
        assert (head.kind, head.flags) == (HEADERS, END_HEADERS)
        assert (body.kind, body.flags, body.payload) == (DATA, 0, b"ab")
        assert (end.kind, end.flags, end.payload) == (DATA, 1, b"")

    def test_a_body_waits_for_the_upstreams_windows(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks(b"PUT", length=300_000)
        for _ in range(3):
            stream.send_body(b"x" * 100_000)
        assert answer.request_paused
        stream.end_body([])
        sent = harness.gets()
        assert sum(len(each.payload) for each in sent[1:]) == 65535
        harness.answers(window_update(0, 300_000), window_update(1, 300_000))
        sent = harness.gets()
        assert sum(len(each.payload) for each in sent) == 300_000 - 65535
        assert sent[-1].flags == 1

    def test_the_upload_goes_on_when_the_upstream_reads(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks(b"PUT", length=CHUNKED)
        stream.send_body(b"x" * 200_000)
        assert answer.request_paused
        harness.answers(window_update(0, 200_000), window_update(1, 200_000))
        harness.gets()
        assert not answer.request_paused

    def test_an_upload_that_begins_while_too_much_waits_is_paused(self, harness: H2ClientHarness) -> None:
        uploads = [harness.asks(b"PUT", length=CHUNKED) for _ in range(5)]
        for stream, _ in uploads:
            stream.send_body(b"x" * 60_000)  # more than the connection's window, less than a stream may have waiting
        harness.gets()
        late, answer = harness.asks(b"PUT", length=CHUNKED)
        assert harness.connection.sender.backlogged
        late.send_body(b"x")
        assert answer.request_paused
        for stream, _ in uploads:
            stream.cancel()
        assert not answer.request_paused

    def test_a_response_before_the_end_of_the_request_ends_that(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks(b"PUT", length=CHUNKED)
        stream.send_body(b"x")
        harness.answers(response(1, end=True), rst_stream(1, ErrorCode.NO_ERROR))
        assert answer.complete
        stream.send_body(b"y")
        stream.end_body([])
        assert [(sent.kind, sent.payload) for sent in harness.gets()[1:]] == [(DATA, b"x"), (RST_STREAM, bytes(4))]
        assert harness.wire.open


class TestEnds:
    def test_a_cancelled_request_is_reset_and_what_is_on_its_way_forgotten(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks()
        harness.gets()
        stream.cancel()
        assert harness.resets() == [ErrorCode.CANCEL]
        harness.answers(response(1), data(1, b"x"), data(1, b"", end=True))
        assert (answer.head, answer.failure) == (None, None)
        assert harness.wire.open

    def test_late_frames_of_many_cancelled_watches_are_no_flood(self, harness: H2ClientHarness) -> None:
        watches = [harness.asks(lasting=True)[0] for _ in range(100)]
        harness.answers(*[response(watch.stream_id) for watch in watches])
        for watch in watches:
            watch.cancel()
        for _ in range(50):
            harness.answers(*[data(watch.stream_id, b"event") for watch in watches])
        assert harness.wire.open
        assert not harness.violations

    def test_but_they_are_bounded(self, harness: H2ClientHarness) -> None:
        stream, _ = harness.asks()
        stream.cancel()
        for _ in range(STREAM_WINDOW // LEAST_FRAME // 500):
            harness.answers(*[data(1, b"x")] * 500)
        assert harness.wire.open
        for _ in range(3):
            harness.answers(*[data(1, b"x")] * 500)
        assert harness.ended_with == ErrorCode.ENHANCE_YOUR_CALM
        assert len(harness.violations) == 1

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (ErrorCode.REFUSED_STREAM, RequestNotProcessed),
            (ErrorCode.HTTP_1_1_REQUIRED, HTTP1Required),
            (ErrorCode.INTERNAL_ERROR, ConnectionClosed),
            (ErrorCode.NO_ERROR, ConnectionClosed),
            (99, ConnectionClosed),
        ],
    )
    def test_a_stream_that_the_upstream_resets(
        self, harness: H2ClientHarness, code: int, kind: type[Exception]
    ) -> None:
        _, answer = harness.asks()
        harness.answers(rst_stream(1, code))
        assert isinstance(answer.failure, kind)
        assert isinstance(answer.failure, RequestNotProcessed) == issubclass(kind, RequestNotProcessed)
        _, begun = harness.asks()
        harness.answers(response(3), rst_stream(3, code))
        assert isinstance(begun.failure, ConnectionClosed)
        assert not isinstance(begun.failure, RequestNotProcessed)

    def test_after_a_refusal_there_is_no_room_for_a_second(self, harness: H2ClientHarness) -> None:
        harness.asks()
        harness.asks()
        harness.answers(rst_stream(3, ErrorCode.REFUSED_STREAM))
        assert harness.connection.limit == 1
        harness.passes(1.5)
        assert harness.connection.limit == 1000

    def test_a_smaller_limit_holds_for_what_comes_in_the_same_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else what was refused would be sent again at once, beyond the limit that we have acknowledged."""
        harness, seen = H2ClientHarness(begun=False), []
        harness.waits = True
        monkeypatch.setattr(harness, "room", lambda connection: seen.append(connection.limit))
        for _ in range(4):
            harness.asks()
        two = MAX_CONCURRENT_STREAMS.to_bytes(2, "big") + (2).to_bytes(4, "big")
        refused = (rst_stream(number, ErrorCode.REFUSED_STREAM) for number in (5, 7))
        harness.answers(frame(SETTINGS, 0, 0, two), *refused)
        assert seen
        assert max(seen) <= 2
        assert harness.connection.limit == 2

    def test_goaway(self, harness: H2ClientHarness) -> None:
        _, first = harness.asks()
        _, second = harness.asks()
        harness.answers(goaway(1, ErrorCode.NO_ERROR))
        assert isinstance(second.failure, RequestNotProcessed)
        assert harness.unusable == 1
        assert not harness.violations
        harness.answers(response(1, OK_LENGTH + b"2"), data(1, b"ok", end=True))
        assert first.body == b"ok"
        assert harness.ended_with == ErrorCode.NO_ERROR

    def test_a_goaway_with_a_complaint_is_reported(self, harness: H2ClientHarness) -> None:
        harness.asks()
        harness.answers(goaway(1, ErrorCode.ENHANCE_YOUR_CALM, b"too\nmany\x00"))
        assert harness.violations == ["it sent GOAWAY ENHANCE_YOUR_CALM (toomany)"]

    def test_the_loss_of_the_connection(self, harness: H2ClientHarness) -> None:
        answers = [harness.asks()[1] for _ in range(3)]
        harness.answers(response(1))
        harness.wire.lose()
        assert all(isinstance(answer.failure, ConnectionClosed) for answer in answers)
        assert harness.unusable == 1

    def test_a_retired_connection_closes_after_its_last_stream(self, harness: H2ClientHarness) -> None:
        harness.asks()
        harness.connection.retire()
        assert (harness.unusable, harness.wire.open) == (1, True)
        harness.answers(response(1, end=True))
        assert harness.ended_with == ErrorCode.NO_ERROR

    def test_an_idle_connection_closes_when_its_time_has_passed(self, harness: H2ClientHarness) -> None:
        harness.connection.close_if_idle_until(harness.clock.seconds() + 40)
        harness.passes(39)
        assert harness.wire.open
        harness.passes(2)
        assert not bool(harness.wire.open)
        assert harness.unusable == 1


class TestTime:
    def test_a_response_that_does_not_begin(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks(timeout=10)
        harness.passes(9.5)
        assert not answer.failure
        harness.passes(1)
        assert isinstance(answer.failure, ResponseTimeout)
        assert harness.gets()[-1].code == ErrorCode.CANCEL

    def test_the_time_runs_from_the_end_of_the_request_to_the_first_byte(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks(b"PUT", length=CHUNKED, timeout=10)
        harness.passes(20)
        stream.end_body([])
        assert harness.timers == 1
        harness.passes(9)
        harness.answers(response(1))
        assert harness.timers == 0
        harness.passes(20)
        assert answer.failure is None

    def test_an_upstream_that_reads_nothing_of_the_request(self, harness: H2ClientHarness) -> None:
        """As nginx's proxy_send_timeout; the stream alone ends."""
        stream, answer = harness.asks(b"PUT", length=CHUNKED, timeout=10)
        stream.send_body(b"x" * 200_000)
        harness.passes(19.5)  # what the windows permit was sent meanwhile
        assert (stream.send_paused, answer.failure) == (True, None)
        harness.passes(1)
        assert isinstance(answer.failure, ResponseTimeout)
        assert harness.resets() == [ErrorCode.CANCEL]
        assert (harness.wire.open, harness.timers) == (True, 0)

    def test_an_upstream_that_reads_the_request_slowly(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks(b"PUT", length=CHUNKED, timeout=10)
        stream.send_body(b"x" * 200_000)
        for _ in range(5):
            harness.answers(window_update(0, 1), window_update(stream.stream_id, 1))
            harness.passes(9)
        assert (stream.send_paused, answer.failure) == (True, None)
        harness.answers(window_update(0, 200_000), window_update(stream.stream_id, 200_000))
        harness.passes(25)
        assert not stream.send_paused  # it is the client's turn
        assert (answer.failure, harness.timers) == (None, 0)

    @pytest.mark.parametrize("timeout", [0, 10])
    def test_no_time_for_the_request_runs_once_the_response_has_begun(
        self, harness: H2ClientHarness, timeout: float
    ) -> None:
        stream, answer = harness.asks(b"PUT", length=CHUNKED, timeout=timeout)
        if timeout:
            harness.answers(response(stream.stream_id))
        stream.send_body(b"x" * 200_000)
        harness.passes(25)
        assert (stream.send_paused, answer.failure, harness.timers) == (True, None, 0)

    def test_an_upstream_that_does_not_answer_a_ping_is_given_up(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks(timeout=0)
        harness.answers(response(1))
        harness.gets()
        for _ in range(3):  # it answers
            harness.passes(31)
            asked = [sent for sent in harness.gets() if sent.kind == PING]
            assert len(asked) == 1
            harness.answers(ping(asked[0].payload, ack=True))
        harness.passes(44)
        assert not answer.failure
        harness.passes(2)
        assert isinstance(answer.failure, ConnectionClosed)
        assert not harness.wire.open
        assert len(harness.violations) == 1

    def test_without_streams_there_is_no_ping(self, harness: H2ClientHarness) -> None:
        harness.passes(100)
        assert not harness.gets()
        assert harness.wire.open


class TestWindows:
    def updates(self, harness: H2ClientHarness, stream_id: int) -> int:
        """Sum of what was given back on a stream."""
        sent = harness.gets()
        return sum(each.number for each in sent if each.kind == WINDOW_UPDATE and each.stream_id == stream_id)

    def test_what_is_read_is_given_back_and_more_to_who_keeps_up(self, harness: H2ClientHarness) -> None:
        harness.asks()
        harness.answers(response(1))
        harness.gets()
        window = received = 65536
        for _ in range(300):
            harness.answers(data(1, bytes(16384)))
            received += 16384
            window += self.updates(harness, 1) - 16384
        assert LARGEST_WINDOW / 2 <= window <= LARGEST_WINDOW

    def test_a_slow_stream_keeps_its_window(self, harness: H2ClientHarness) -> None:
        harness.asks()
        harness.answers(response(1))
        harness.gets()
        window = 65536
        for _ in range(100):
            harness.passes(0.5)
            harness.answers(data(1, bytes(16384)))
            window += self.updates(harness, 1) - 16384
            assert window <= 65536

    def test_a_paused_stream_gets_nothing_and_the_connection_everything(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks()
        harness.answers(response(1))
        harness.gets()
        stream.pause()
        assert harness.connection.stalled == 1
        given = 0
        for _ in range(4):
            harness.answers(data(1, bytes(16384)))
            given += self.updates(harness, 1)
        assert (given, len(answer.body)) == (0, 65536)
        for number in range(3, 2 * 600, 2):  # more than the window of the connection
            harness.asks()
            harness.answers(response(number), data(number, bytes(16384)), data(number, bytes(16384), end=True))
        assert harness.wire.open
        harness.gets()
        stream.resume()
        assert harness.connection.stalled == 0
        assert self.updates(harness, 1) == 65536

    def test_a_paused_stream_that_ends_no_longer_counts(self, harness: H2ClientHarness) -> None:
        stream, _ = harness.asks()
        harness.answers(response(1))
        stream.pause()
        harness.answers(data(1, b"x", end=True))
        stream.resume()
        stream.pause()
        assert harness.connection.stalled == 0

    def test_a_paused_stream_that_is_resumed_by_its_end_counts_once(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks()
        stream.pause()  # its client does not read even before the response
        answer.on_head = stream.resume
        harness.answers(response(1, end=True))
        assert answer.complete
        assert harness.connection.stalled == 0

    def test_who_sends_more_than_the_window_is_cut_off(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks()
        harness.answers(response(1))
        stream.pause()
        harness.answers(*[data(1, bytes(16384))] * 5)
        assert isinstance(answer.failure, UpstreamProtocolError)


class TestHostileUpstreams:
    def test_a_body_of_another_length_leaves_nothing(self, harness: H2ClientHarness) -> None:
        stream, answer = harness.asks()
        left = weakref.ref(answer)
        harness.answers(response(1, OK_LENGTH + b"2") + data(1, b"abc"))
        assert isinstance(answer.failure, UpstreamProtocolError)
        del stream, answer
        gc.collect()
        assert left() is None

    @pytest.mark.parametrize(
        ("sent", "code"),
        [
            (frame(PUSH_PROMISE, END_HEADERS, 1, b"\x00\x00\x00\x02\x82"), ErrorCode.PROTOCOL_ERROR),
            (response(2), ErrorCode.PROTOCOL_ERROR),
            (response(9), ErrorCode.PROTOCOL_ERROR),
            (data(9, b"x"), ErrorCode.PROTOCOL_ERROR),
            (rst_stream(9, 0), ErrorCode.PROTOCOL_ERROR),
            (frame(HEADERS, 0, 1, OK) + data(1, b""), ErrorCode.PROTOCOL_ERROR),
            (
                frame(HEADERS, 0, 1, OK) + b"".join([frame(CONTINUATION, 0, 1, b"\x88")] * 9),
                ErrorCode.ENHANCE_YOUR_CALM,
            ),
            (response(1, b"\xff\xff"), ErrorCode.COMPRESSION_ERROR),
            (b"".join([ping(bytes(8))] * 1100), ErrorCode.ENHANCE_YOUR_CALM),
            (b"".join([frame(SETTINGS, 0, 0)] * 1100), ErrorCode.ENHANCE_YOUR_CALM),
            (response(1) + b"".join([data(1, b"")] * 1100), ErrorCode.ENHANCE_YOUR_CALM),
            (frame(SETTINGS, 0, 0, b"\x00\x02\x00\x00\x00\x05"), ErrorCode.PROTOCOL_ERROR),
        ],
    )
    def test_the_connection_ends_and_is_reported(self, harness: H2ClientHarness, sent: bytes, code: int) -> None:
        _, answer = harness.asks()
        harness.answers(sent)
        assert harness.ended_with == code
        assert isinstance(answer.failure, ConnectionClosed)
        assert len(harness.violations) == 1
        assert harness.unusable == 1

    def test_a_head_with_too_many_fields(self, harness: H2ClientHarness) -> None:
        _, answer = harness.asks()
        fields = b"\x88" + b"\x00\x01a\x01b" * (MAX_FIELDS + 1)
        harness.answers(response(1, fields[:16000], flags=0), frame(CONTINUATION, END_HEADERS, 1, fields[16000:]))
        assert isinstance(answer.failure, UpstreamProtocolError | ConnectionClosed)

    def test_http1_is_no_http2(self) -> None:
        harness = H2ClientHarness(begun=False)
        _, answer = harness.asks()
        harness.answers(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert isinstance(answer.failure, ConnectionClosed)
        assert [sent.kind for sent in harness.gets()][-1] == GOAWAY
