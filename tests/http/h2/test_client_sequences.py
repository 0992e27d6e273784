"""Random sequences of frames to the client engine, with h2's server at the other end, or h2's client as an oracle.

As `test_frame_sequences` for the other side: whatever comes in an order that the protocol permits must arrive whole and
be accounted for exactly; whatever is wrong must be an error to us where it is one to h2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.http.messages import CHUNKED
from tests.http.h1.harness import Answer
from tests.http.h2 import raw
from tests.http.h2.client_harness import H2ClientHarness
from tests.http.h2.frame_steps import NUMBERS, ConnectionFrames, Step, steps
from tests.http.h2.h2_peer import H2Peer
from tests.http.h2.oracle import Verdict

RESPONSE = [(":status", "200"), ("x-test", "a")]


class Asked:
    """A request of ours."""

    def __init__(self, stream: H2ClientStream, answer: Answer, has_body: bool) -> None:
        self.stream, self.answer = stream, answer
        self.number = stream.stream_id
        self.sent = b""
        self.sending = has_body
        self.cancelled = False


class Site(H2Peer, H2ClientHarness):
    """Our client, with h2's server at the other end, which gives credit back only when told to."""

    def __init__(self) -> None:
        super().__init__(begun=False)
        self.begin_protocol(client_side=False)
        self.asked: list[Asked] = []
        self.got: dict[int, bytes] = {}
        self.complete: set[int] = set()
        self.reset: set[int] = set()  # by us
        self.answering: list[int] = []  # streams whose response is not complete
        self.bodies: dict[int, bytes] = {}
        self.refused: set[int] = set()  # by the server
        self.finished: set[int] = set()
        self._came(self.first)
        self.exchange()

    def exchange(self) -> None:
        """Until nobody has anything to say."""
        while True:
            out = self.protocol.data_to_send()
            self.answers(out)
            came = self.wire.taken()
            if not came and not out:
                return
            self._came(came)

    def _came(self, came: bytes) -> None:
        for event in self.protocol.receive_data(came):
            assert not isinstance(event, h2.events.ConnectionTerminated), event
            stream: int = getattr(event, "stream_id", None) or 0
            if isinstance(event, h2.events.RequestReceived):
                self.answering.append(stream)
                self.got[stream] = b""
            elif isinstance(event, h2.events.DataReceived):
                self.got[stream] += event.data or b""
                self.received(event)
            elif isinstance(event, h2.events.StreamEnded):
                self.complete.add(stream)
            elif isinstance(event, h2.events.StreamReset):
                self.reset.add(stream)
                if stream in self.answering:
                    self.answering.remove(stream)

    # steps of the client

    def _one(self, chosen: int, among: list[Asked]) -> Asked | None:
        return among[chosen % len(among)] if among else None

    def ask(self, chosen: int, has_body: bool) -> None:
        if len(self.answering) < 80:
            length = CHUNKED if has_body else 0
            stream, answer = self.asks(b"POST" if has_body else b"GET", length=length, lasting=bool(chosen % 2))
            self.asked.append(Asked(stream, answer, has_body))

    @property
    def live(self) -> list[Asked]:
        """Requests without an outcome."""
        return [one for one in self.asked if not (one.cancelled or one.answer.failure or one.answer.complete)]

    def send(self, chosen: int, size: int) -> None:
        one = self._one(chosen, [one for one in self.live if one.sending])
        if one is not None:
            body = bytes((chosen + number) % 251 for number in range(size))
            if body:
                one.stream.send_body(body)
            one.sent += body

    def end(self, chosen: int, trailers: bool) -> None:
        one = self._one(chosen, [one for one in self.live if one.sending])
        if one is not None:
            one.sending = False
            one.stream.end_body([(b"x-sum", b"1")] if trailers else [])

    def cancel(self, chosen: int) -> None:
        one = self._one(chosen, self.live)
        if one is not None:
            one.cancelled = True
            one.stream.cancel()

    def pause(self, chosen: int) -> None:
        one = self._one(chosen, self.live)
        if one is not None:
            one.stream.pause()

    def resume(self, chosen: int) -> None:
        one = self._one(chosen, self.live)
        if one is not None:
            one.stream.resume()

    def wait(self) -> None:
        self.passes(0.25)

    # steps of the server

    def _answering(self, chosen: int) -> int | None:
        return self.answering[chosen % len(self.answering)] if self.answering else None

    def inform(self, chosen: int) -> None:
        stream = self._answering(chosen)
        if stream is not None and stream not in self.bodies:
            self.protocol.send_headers(stream, [(":status", "103"), ("x-early", "a")])

    def respond(self, chosen: int, size: int) -> None:
        """A head before the first piece, then a piece as far as the windows permit."""
        stream = self._answering(chosen)
        if stream is None:
            return
        if stream not in self.bodies:
            self.protocol.send_headers(stream, RESPONSE)
            self.bodies[stream] = b""
        size = min(size, self.protocol.local_flow_control_window(stream), self.protocol.max_outbound_frame_size)
        padding = chosen % 9 if size > 300 and chosen % 2 else None
        if padding is not None:
            size -= padding + 1
        if size:
            body = bytes((chosen + number) % 253 for number in range(size))
            self.protocol.send_data(stream, body, pad_length=padding)
            self.bodies[stream] += body

    def complete_response(self, chosen: int, trailers: bool) -> None:
        stream = self._answering(chosen)
        if stream is None:
            return
        self.answering.remove(stream)
        self.finished.add(stream)
        if stream not in self.bodies:
            self.bodies[stream] = b""
            self.protocol.send_headers(stream, RESPONSE, end_stream=True)
        elif trailers:
            self.protocol.send_headers(stream, [("x-sum", "1")], end_stream=True)
        else:
            self.protocol.end_stream(stream)

    def refuse(self, chosen: int, code: int) -> None:
        stream = self._answering(chosen)
        if stream is not None:
            self.answering.remove(stream)
            self.refused.add(stream)
            self.protocol.reset_stream(stream, code)

    def settle(self) -> None:
        self.exchange()
        for one in self.live:
            one.stream.resume()
            if one.sending:
                one.sending = False
                one.stream.end_body([])
        self.change(65535)
        self.exchange()
        self.acknowledge_all(self.exchange)
        while self.answering:
            self.complete_response(0, False)
        self.exchange()


STEPS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "ask": (Site.ask, (NUMBERS, st.booleans())),
    "send": (Site.send, (NUMBERS, st.sampled_from((0, 1, 100, 20000, 100000)))),
    "end": (Site.end, (NUMBERS, st.booleans())),
    "cancel": (Site.cancel, (NUMBERS,)),
    "pause": (Site.pause, (NUMBERS,)),
    "resume": (Site.resume, (NUMBERS,)),
    "inform": (Site.inform, (NUMBERS,)),
    "respond": (Site.respond, (NUMBERS, st.sampled_from((0, 1, 1000, 16384)))),
    "complete": (Site.complete_response, (NUMBERS, st.booleans())),
    "refuse": (Site.refuse, (NUMBERS, st.sampled_from((0, 2, 7, 8, 11)))),
    "acknowledge": (Site.acknowledge, (NUMBERS, st.sampled_from((1, 300, 10000, 70000)))),
    "change": (Site.change, (st.sampled_from((0, 1, 1000, 65535, 2**20)),)),
    "ping": (Site.ping, (NUMBERS,)),
    "wait": (Site.wait, ()),
    "exchange": (Site.exchange, ()),
}


@settings(max_examples=60)
@given(steps(STEPS, max_size=80))
def test_valid_sequences(chosen: list[Step]) -> None:
    site = Site()
    for name, *arguments in chosen:
        STEPS[name][0](site, *arguments)
        if name not in ("ask", "send"):
            site.exchange()
    site.settle()
    assert not site.violations
    for one in site.asked:
        answer = one.answer
        got = site.got[one.number]
        if one.cancelled:
            assert one.sent.startswith(got)
            assert one.number in site.reset or one.number in site.finished
        elif one.number in site.refused:
            assert (answer.failure is not None) is not answer.complete
            assert site.bodies.get(one.number, b"").startswith(answer.body)
        else:
            assert answer.complete
            assert answer.failure is None
            assert answer.body == site.bodies[one.number]
            if one.number in site.complete:
                assert got == one.sent
            else:
                assert one.number in site.reset  # answered before it was complete
                assert one.sent.startswith(got)
    connection = site.connection
    assert not connection.streams
    assert connection.lasting == connection.stalled == 0
    assert site.protocol.outbound_flow_control_window == connection.table.receive_window
    assert site.timers == 0
    connection.retire()
    site.wire.settle()
    assert not connection.deadlines._items


# -- any frames: our client and h2's ---------------------------------------------------------------------------------

STREAMS = (1, 3, 5, 7, 9, 11)


class Composer(ConnectionFrames):
    """Makes the frames of a server, which may be wrong; every stream of STREAMS was opened by a GET."""

    def __init__(self) -> None:
        self.state = dict.fromkeys(STREAMS, "waiting")

    def _in(self, chosen: int, *states: str) -> int | None:
        found = [stream for stream, state in self.state.items() if state in states]
        return found[chosen % len(found)] if found else None

    def head(self, chosen: int, form: int, end: bool) -> bytes | None:
        stream = self._in(chosen, "waiting")
        if stream is None:
            return None
        self.state[stream] = "over" if end else "begun"
        block = (
            b"\x88",
            b"\x88" + raw.literal(b"x-test", b"v" * 300),
            b"\x88" + raw.indexing(b"x-kept", b"w"),
            b"\x8d" + raw.literal(b"content-type", b"application/json"),
            raw.literal(b":status", b"299") + raw.never_indexed(b"set-cookie", b"a=b"),
            b"\x88" + raw.indexed(62),
        )[form % 6]
        flags = raw.END_STREAM if end else 0
        if form % 7 == 3:
            return raw.headers(stream, block[:1], flags) + raw.continuation(stream, block[1:])
        if form % 7 == 4:
            return raw.headers(stream, raw.padded(raw.dependency(0) + block, 5), flags | 0x2C)
        return raw.headers(stream, block, flags | raw.END_HEADERS)

    def interim(self, chosen: int, status: int) -> bytes | None:
        stream = self._in(chosen, "waiting")
        code = b"%d" % (102 + status % 90)
        return None if stream is None else raw.headers(stream, raw.literal(b":status", code), raw.END_HEADERS)

    def data(self, chosen: int, size: int, end: bool, padding: int) -> bytes | None:
        stream = self._in(chosen, "begun")
        if stream is None:
            return None
        flags = raw.END_STREAM if end else 0
        if end:
            self.state[stream] = "over"
        body = bytes((chosen + number) % 256 for number in range(size))
        if padding:
            return raw.data(stream, raw.padded(body, padding), flags | raw.PADDED)
        return raw.data(stream, body, flags)

    def trailers(self, chosen: int) -> bytes | None:
        stream = self._in(chosen, "begun")
        if stream is None:
            return None
        self.state[stream] = "over"
        return raw.headers(stream, raw.literal(b"x-sum", b"%d" % chosen))

    def reset(self, chosen: int, code: int) -> bytes | None:
        stream = self._in(chosen, "begun", "waiting")
        if stream is None:
            return None
        self.state[stream] = "over"
        return raw.rst_stream(stream, code)

    def window(self, chosen: int, more: int) -> bytes:
        return raw.window_update(chosen % 3 and (self._in(chosen, "waiting", "begun") or 0), more)

    def unknown(self, kind: int, flags: int, chosen: int) -> bytes:
        return raw.frame(0x20 + kind % 200, flags, chosen % 20, b"u" * (chosen % 50))

    # wrong ones

    def noise(self, kind: int, flags: int, where: int, payload: bytes) -> bytes:
        return raw.frame(kind, flags, (0, 2, 13, 1, 3, 5, 7)[where % 7], payload)

    def wrong_head(self, chosen: int, form: int) -> bytes | None:
        stream = self._in(chosen, "waiting")
        if stream is None:
            return None
        self.state[stream] = "over"
        block = (
            b"",
            raw.literal(b":status", b"abc"),
            raw.literal(b":status", b""),
            b"\x88\x88",
            b"\x82\x88",
            raw.literal(b"x-test", b"v") + b"\x88",
            b"\x88" + raw.literal(b"X-Test", b"v"),
            b"\x88" + raw.literal(b"x-test", b"a\r\nb"),
            b"\x88" + raw.literal(b"connection", b"close"),
            b"\x88" + raw.literal(b"transfer-encoding", b"chunked"),
            b"\x88" + raw.literal(b"content-length", b"-1"),
            b"\x88" + raw.literal(b"content-length", b"1") + raw.literal(b"content-length", b"2"),
            b"\x88" + raw.literal(b":x", b"v"),
            raw.literal(b":status", b"101"),
        )[form % 14]
        return raw.headers(stream, block, raw.END_HEADERS)

    def out_of_order(self, chosen: int, form: int) -> bytes | None:
        states = ("waiting", "begun", "over", "over", "over", "waiting")
        stream = self._in(chosen, states[form % 6])
        if stream is None:
            return None
        if form % 6 < 2:
            self.state[stream] = "over"
        return (
            raw.data(stream, b"x"),  # before the head
            raw.headers(stream, b"\x88", raw.END_HEADERS),  # a second head
            raw.headers(stream, b"\x88"),
            raw.data(stream, b"x"),
            raw.window_update(stream, 1),
            raw.frame(raw.PUSH_PROMISE, raw.END_HEADERS, stream, struct.pack(">I", 2) + raw.GET),
        )[form % 6]

    def wrong_length(self, chosen: int, form: int) -> bytes | None:
        stream = self._in(chosen, "waiting")
        if stream is None:
            return None
        self.state[stream] = "over"
        head = raw.headers(stream, b"\x88" + raw.literal(b"content-length", b"5"), raw.END_HEADERS)
        return head + raw.data(stream, (b"abcdef", b"abc")[form % 2], raw.END_STREAM)


BYTE = st.integers(0, 255)
RIGHT: dict[str, tuple[Callable[..., bytes | None], tuple[st.SearchStrategy[Any], ...]]] = {
    "head": (Composer.head, (NUMBERS, BYTE, st.booleans())),
    "interim": (Composer.interim, (NUMBERS, BYTE)),
    "data": (Composer.data, (NUMBERS, st.sampled_from((0, 1, 10, 900)), st.booleans(), st.sampled_from((0, 0, 1, 99)))),
    "trailers": (Composer.trailers, (NUMBERS,)),
    "reset": (Composer.reset, (NUMBERS, st.integers(0, 20))),
    "settings": (Composer.settings, (st.integers(0, 20), NUMBERS)),
    "window": (Composer.window, (NUMBERS, st.integers(1, 1000))),
    "ping": (Composer.ping, (NUMBERS, st.booleans())),
    "unknown": (Composer.unknown, (BYTE, BYTE, NUMBERS)),
}
WRONG: dict[str, tuple[Callable[..., bytes | None], tuple[st.SearchStrategy[Any], ...]]] = {
    "noise": (
        Composer.noise,
        (st.integers(0, 9), st.sampled_from((0, 1, 4, 5, 8, 0x20, 0xFF)), NUMBERS, st.binary(max_size=20)),
    ),
    "wrong_head": (Composer.wrong_head, (NUMBERS, BYTE)),
    "out_of_order": (Composer.out_of_order, (NUMBERS, BYTE)),
    "wrong_length": (Composer.wrong_length, (NUMBERS, BYTE)),
}


class Oracle:
    """h2's client, which has sent the same requests and gives credit back at once."""

    def __init__(self) -> None:
        configuration = h2.config.H2Configuration(
            client_side=True, header_encoding=None, normalize_inbound_headers=False
        )
        self.protocol = h2.connection.H2Connection(configuration)
        self.protocol.initiate_connection()
        self.protocol.update_settings({h2.settings.SettingCodes.ENABLE_PUSH: 0})
        self.view: dict[int, list[Any]] = {stream: [0, b"", False, False] for stream in STREAMS}
        self.feed(raw.settings() + raw.SETTINGS_ACK * 2)
        for stream in STREAMS:
            fields = [(":method", "GET"), (":scheme", "https"), (":authority", "host"), (":path", "/")]
            self.protocol.send_headers(stream, fields, end_stream=True)
        self.protocol.clear_outbound_data_buffer()

    def feed(self, data: bytes) -> Verdict:
        try:
            found = self.protocol.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            return Verdict(connection_error=int(error.error_code))
        for event in found:
            view = self.view.get(getattr(event, "stream_id", None) or 0)
            if view is None:
                continue
            if isinstance(event, h2.events.ResponseReceived):
                status = bytes(dict(event.headers or [])[b":status"])
                view[0] = int(status) if status.isdigit() else -1
            elif isinstance(event, h2.events.DataReceived):
                view[1] += event.data or b""
                if event.flow_controlled_length:
                    self.protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
            elif isinstance(event, h2.events.StreamEnded):
                view[2] = True
            elif isinstance(event, h2.events.StreamReset):
                view[3] = True
        frames, _ = raw.parse(self.protocol.data_to_send())
        return Verdict(stream_errors={one.stream: one.code for one in frames if one.kind == raw.RST_STREAM})


class Ours(H2ClientHarness):
    def __init__(self) -> None:
        super().__init__()
        self.requests = {stream: self.asks() for stream in STREAMS}
        self.gets()

    def feed(self, data: bytes) -> Verdict:
        self.answers(data)
        frames, _ = raw.parse(self.wire.taken())
        errors = {one.stream: one.code for one in frames if one.kind == raw.RST_STREAM}
        ends = [one.code for one in frames if one.kind == raw.GOAWAY]
        return Verdict(connection_error=ends[-1] if ends else None, stream_errors=errors)

    @property
    def view(self) -> dict[int, list[Any]]:
        return {
            stream: [answer.head.status if answer.head else 0, answer.body, answer.complete, answer.failure is not None]
            for stream, (_, answer) in self.requests.items()
        }


def _permitted(name: str, one: raw.Frame, theirs: Verdict, mine: Verdict) -> bool:
    """Whether we may differ from h2; the sections are of RFC 9113."""
    return (
        # 5.4.2: a stream error may be a connection error, which h2 makes of most of them
        (theirs.kind, mine.kind) == ("connection", "stream")
        # 8.1.1: a body that is not of its content-length, or none where h2 does not count; :status, 101 (8.6)
        or (one.kind in (raw.HEADERS, raw.DATA) and (theirs.kind, mine.kind) == ("fine", "stream"))
        # 5.1: HEADERS and DATA on a closed stream are a connection error
        or mine.connection_error == raw.STREAM_CLOSED
        # 5.1: behind our own RST_STREAM, and on a stream that has ended, frames may still come
        or (theirs.kind, mine.kind) == ("stream", "fine")
        # 6.9: the reserved bit is ignored
        or (one.kind == raw.WINDOW_UPDATE and one.number > raw.MAX_WINDOW and mine.kind == "fine")
        # 5.1: what is on an idle stream, or pushed though push is disabled (8.4), is a connection error
        or (one.kind in (raw.RST_STREAM, raw.WINDOW_UPDATE, raw.PUSH_PROMISE) and mine.connection_error == 1)
        # 6.10: a CONTINUATION behind the end of a header block is one, too
        or (one.kind == raw.CONTINUATION and mine.connection_error == raw.PROTOCOL_ERROR)
    )


def _one_of(table: dict[str, Any]) -> st.SearchStrategy[Step]:
    return st.one_of(*(st.tuples(st.just(name), *arguments) for name, (_, arguments) in table.items()))


@settings(max_examples=100)
@given(st.lists(st.one_of(*[_one_of(RIGHT)] * 5, _one_of(WRONG)), min_size=5, max_size=50))
def test_any_sequence(chosen: list[Step]) -> None:
    composer, oracle, ours = Composer(), Oracle(), Ours()
    for name, *arguments in chosen:
        sent = {**RIGHT, **WRONG}[name][0](composer, *arguments)
        if sent is None:
            continue
        first = raw.parse(sent)[0][0]
        theirs, mine = oracle.feed(sent), ours.feed(sent)
        if theirs.kind != mine.kind:
            assert _permitted(name, first, theirs, mine), (name, sent, theirs, mine)
            break
        if mine.kind == "connection" or first.kind == raw.GOAWAY:
            break
        assert set(theirs.stream_errors) == set(mine.stream_errors), (name, sent)
        for stream in mine.stream_errors:
            composer.state[stream] = "over"
            oracle.view.pop(stream, None)
        view = ours.view
        assert {stream: view[stream] for stream in oracle.view} == oracle.view, (name, sent)
    if not ours.wire.lost:
        ours.wire.lose()
    for _, answer in ours.requests.values():
        assert (answer.failure is not None) is not answer.complete  # exactly one end
    assert not ours.connection.streams
    assert ours.timers == 0
    assert not ours.connection.deadlines._items
