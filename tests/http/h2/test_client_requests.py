"""The client engine under any sequence of an upstream's frames and of what happens to requests: each ends once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h2.frames import SETTINGS, frame, goaway, ping, rst_stream, window_update
from mcproxy.http.h2.h2_client import EXTRA_WINDOWS
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.http.h2.h2_stream import STREAM_WINDOW
from mcproxy.http.messages import CHUNKED
from tests.http.h1.harness import Answer
from tests.http.h2.client_harness import OK, OK_LENGTH, H2ClientHarness, response
from tests.http.h2.harness import data

STREAMS = st.sampled_from([1, 1, 1, 3, 3, 5])
BLOCKS = st.sampled_from([OK, OK, OK_LENGTH + b"4", b"\x08\x03103", b"\x00\x01t\x01v"])
USUAL = st.one_of(
    st.builds(response, STREAMS, BLOCKS, end=st.booleans()),
    st.builds(data, STREAMS, st.sampled_from([b"ab", b"abcd", bytes(16384)]), end=st.booleans()),
    st.builds(lambda stream: response(stream) + data(stream, bytes(9000)), STREAMS),
    st.just(window_update(0, 70_000)),
    st.just(ping(b"12345678")),
    st.builds(lambda limit: frame(SETTINGS, 0, 0, b"\0\3" + limit.to_bytes(4, "big")), st.integers(1, 5)),
)
UNUSUAL = st.one_of(
    st.builds(rst_stream, STREAMS, st.integers(0, 14)),
    st.builds(goaway, STREAMS, st.integers(0, 2)),
    st.builds(window_update, STREAMS, st.sampled_from([1, 2**31 - 1])),
    st.builds(response, STREAMS, st.sampled_from([b"\x82", b"\xc0", b"\x08\x03204"]), end=st.booleans()),
    st.builds(data, STREAMS, st.just(b""), end=st.booleans()),
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=12)),
)
UPSTREAM = st.one_of(USUAL, USUAL, USUAL, UNUSUAL)
#: What happens: frames in one read, or an action on one of the requests.
STEPS = st.one_of(
    st.lists(UPSTREAM, min_size=1, max_size=4),
    st.sampled_from(["ask", "ask", "put", "watch", "cancel", "pause", "resume", "send", "end", "time", "lose"]),
)


class Strict(Answer):
    """Is called in the order of `ResponseSink`, and not after the end."""

    over = False

    def _begins(self) -> None:
        assert not self.over

    def response_interim(self, head: Any) -> None:
        self._begins()
        assert self.head is None
        super().response_interim(head)

    def response_head(self, head: Any) -> None:
        self._begins()
        super().response_head(head)

    def response_data(self, data: bytes) -> None:
        self._begins()
        assert self.head is not None
        super().response_data(data)

    def response_flush(self) -> None:
        self._begins()
        super().response_flush()

    def response_end(self, trailers: Any) -> None:
        self._begins()
        super().response_end(trailers)
        assert self.head is not None
        assert self.head.length < 0 or len(self.body) == self.head.length
        self.over = True

    def response_failed(self, problem: Exception) -> None:
        self._begins()
        super().response_failed(problem)
        self.over = True


class Play:
    def __init__(self) -> None:
        self.harness = H2ClientHarness()
        self.requests: list[tuple[H2ClientStream, Strict]] = []

    def ask(self, *, length: int = 0, lasting: bool = False) -> None:
        connection = self.harness.connection
        if connection.usable and len(connection.streams) < connection.limit:
            stream, answer = connection.new_request(lasting), Strict()
            head: Any = self.harness.head(b"PUT" if length else b"GET", length)
            stream.send_head(head, b"/", b"host", (), answer, 0.0 if lasting else 10.0)
            self.requests.append((stream, answer))

    def act(self, what: str) -> None:
        if what in ("ask", "put", "watch"):
            self.ask(length=CHUNKED if what == "put" else 0, lasting=what == "watch")
        elif what == "time":
            self.harness.passes(4.0)
        elif what == "lose":
            self.lose()
        elif self.requests:
            stream, answer = self.requests[-1]
            if answer.over:
                return
            if what == "cancel":
                stream.cancel()
                answer.over = True
            elif what == "send":
                stream.send_body(bytes(40_000))
            elif what == "end":
                stream.end_body([])
            else:
                getattr(stream, what)()

    def lose(self) -> None:
        if not self.harness.wire.lost:
            self.harness.wire.lose()

    def check(self) -> None:
        connection = self.harness.connection
        open_streams = connection.streams.values()
        ended = [stream for stream, answer in self.requests if answer.over]
        assert not set(ended) & set(open_streams)
        if not connection.closed:
            assert {stream for stream, answer in self.requests if not answer.over} == set(open_streams)
            assert connection.lasting == sum(stream.lasting for stream in open_streams)
            assert connection.stalled == sum(stream.receive_paused for stream in open_streams)
            wider = sum(stream.receive_target - STREAM_WINDOW for stream in open_streams)
            assert connection._extra == EXTRA_WINDOWS - wider
            assert connection.sender.queued == sum(stream.queued for stream in open_streams)
        else:
            assert all(answer.over for _, answer in self.requests)
            assert self.harness.unusable == 1
        assert not any(stream.deadline != float("inf") for stream in ended)


@settings(max_examples=120, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_every_request_ends_once_and_every_count_is_given_back(steps: list[str | list[bytes]]) -> None:
    play = Play()
    play.ask()
    for step in steps:
        if isinstance(step, str):
            play.act(step)
        elif play.harness.wire.open:
            play.harness.answers(*step)
        play.harness.wire.turn()
        play.check()
    play.lose()
    play.check()
    assert all(answer.over for _, answer in play.requests)
