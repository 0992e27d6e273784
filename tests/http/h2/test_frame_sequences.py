"""Random sequences of frames to the server engine, with the `h2` package at the other end, or beside it as an oracle.

Two kinds. `test_valid_sequences`: h2's client speaks to our server, both in every order that the protocol permits, and
every body must arrive whole, no window may be exceeded (h2 raises if we do), and what we gave back must be what we
received. `test_any_sequence`: frames that may be wrong go to our server and to h2's, which must come to the same end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.h2 import raw
from tests.http.h2.frame_steps import NUMBERS, RIGHT, WRONG, Composer, Step, sequences, steps
from tests.http.h2.h2_peer import H2Peer
from tests.http.h2.oracle import Received, ServerOracle, Verdict
from tests.http.h2.origin import Asked
from tests.http.h2.stage import Stage

# -- h2's client and our server ------------------------------------------------------------------------------------


class Client(H2Peer):
    """h2's client on a stage."""

    def __init__(self) -> None:
        self.begin_protocol(client_side=True)
        self.stage = Stage(begin=False, streams=100)
        self.sent: dict[int, bytes] = {}  # request bodies
        self.sending: list[int] = []  # streams whose request is not complete
        self.got: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self.answers: dict[int, bytes] = {}
        self.trailers: dict[int, list[raw.Field]] = {}
        self.exchange_bytes()

    def exchange_bytes(self) -> None:
        """Until nobody has anything to say."""
        while True:
            out = self.protocol.data_to_send()
            if out:
                self.stage.wire.deliver(out)
            self.stage.wire.turn()
            came = self.stage.wire.taken()
            if not came and not out:
                return
            for event in self.protocol.receive_data(came):
                self.take(event)

    def take(self, event: h2.events.Event) -> None:
        assert not isinstance(event, h2.events.ConnectionTerminated), event
        if isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            self.got[event.stream_id] = self.got.get(event.stream_id, b"") + (event.data or b"")
            self.received(event)
        elif isinstance(event, h2.events.StreamEnded):
            assert event.stream_id is not None
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            raise AssertionError(event)

    # steps

    def begin(self, chosen: int, has_body: bool) -> None:
        if len(self.sending) + len(self.open) > 90:
            return
        stream = self.protocol.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "https"), (":authority", "k8s.test"), (":path", "/hold")]
        fields.append(("x-test", "v" * (chosen % 200)))
        self.protocol.send_headers(stream, fields, end_stream=not has_body)
        self.sent[stream] = b""
        if has_body:
            self.sending.append(stream)

    def send(self, chosen: int, size: int) -> None:
        if self.sending:
            stream = self.sending[chosen % len(self.sending)]
            size = min(size, self.protocol.local_flow_control_window(stream), self.protocol.max_outbound_frame_size)
            padding = chosen % 7 if size > 300 and chosen % 2 else None
            if padding is not None:
                size -= padding + 1
            body = bytes((chosen + stream) % 251 for _ in range(size))
            self.protocol.send_data(stream, body, pad_length=padding)
            self.sent[stream] += body

    def finish(self, chosen: int, trailers: bool) -> None:
        if self.sending:
            stream = self.sending.pop(chosen % len(self.sending))
            if trailers:
                self.protocol.send_headers(stream, [("x-sum", str(chosen))], end_stream=True)
                self.trailers[stream] = [(b"x-sum", b"%d" % chosen)]
            else:
                self.protocol.end_stream(stream)
                self.trailers[stream] = []

    def give_up(self, chosen: int) -> None:
        if self.sending:
            stream = self.sending.pop(chosen % len(self.sending))
            self.protocol.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self.reset.add(stream)

    # steps of the server

    @property
    def open(self) -> list[Asked]:
        return [each for each in self.stage.asked if not each.exchange.ended and not each.exchange.responded]

    def answer(self, chosen: int, size: int) -> None:
        """The handler answers one request at once, perhaps before it is complete."""
        if self.open:
            one = self.open[chosen % len(self.open)]
            if not one.exchange.body_complete:
                return  # ends the stream by RST_STREAM NO_ERROR: a test of its own
            body = bytes(chosen % 253 for _ in range(size))
            self.answers[one.exchange.stream_id] = body  # type: ignore[attr-defined]
            one.answer(body)

    def answer_in_pieces(self, chosen: int, size: int) -> None:
        if self.open:
            one = self.open[chosen % len(self.open)]
            if not one.exchange.body_complete:
                return
            pieces = [bytes((chosen + number) % 256 for _ in range(size % (97 * number + 1))) for number in range(6)]
            self.answers[one.exchange.stream_id] = b"".join(pieces)  # type: ignore[attr-defined]
            one.exchange.respond(200, b"", b"", -1)
            for piece in pieces:
                one.exchange.write(piece)
                one.exchange.flush()
            one.exchange.end()

    def pause(self, chosen: int) -> None:
        if self.stage.asked:
            self.stage.asked[chosen % len(self.stage.asked)].exchange.pause_body()

    def resume(self, chosen: int) -> None:
        if self.stage.asked:
            self.stage.asked[chosen % len(self.stage.asked)].exchange.resume_body()

    def wait(self) -> None:
        self.stage.clock.advance(0.25)

    # the end

    def settle(self) -> None:
        """Everybody reads and finishes."""
        for one in self.stage.asked:
            one.exchange.resume_body()
        self.exchange_bytes()
        while self.sending:
            self.finish(0, False)
        self.change(65535)
        self.exchange_bytes()
        for number, _ in enumerate(list(self.open)):
            self.answer(0, number % 300)
        self.exchange_bytes()
        self.acknowledge_all(self.exchange_bytes)


STEPS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "begin": (Client.begin, (NUMBERS, st.booleans())),
    "send": (Client.send, (NUMBERS, st.sampled_from((0, 1, 100, 5000, 16384)))),
    "finish": (Client.finish, (NUMBERS, st.booleans())),
    "give_up": (Client.give_up, (NUMBERS,)),
    "acknowledge": (Client.acknowledge, (NUMBERS, st.sampled_from((1, 300, 10000, 70000)))),
    "change": (Client.change, (st.sampled_from((0, 1, 1000, 65535, 2**20)),)),
    "ping": (Client.ping, (NUMBERS,)),
    "answer": (Client.answer, (NUMBERS, st.sampled_from((0, 1, 1000, 20000, 100000)))),
    "answer_in_pieces": (Client.answer_in_pieces, (NUMBERS, st.sampled_from((0, 7, 3000, 40000)))),
    "pause": (Client.pause, (NUMBERS,)),
    "resume": (Client.resume, (NUMBERS,)),
    "wait": (Client.wait, ()),
    "exchange": (Client.exchange_bytes, ()),
}


@settings(max_examples=60)
@given(steps(STEPS, max_size=60))
def test_valid_sequences(chosen: list[Step]) -> None:
    client = Client()
    for name, *arguments in chosen:
        STEPS[name][0](client, *arguments)
        if name not in ("begin", "send"):  # several of these go in one read
            client.exchange_bytes()
    client.exchange_bytes()
    client.settle()
    stage = client.stage
    reached = {each.exchange.stream_id for each in stage.asked}  # type: ignore[attr-defined]
    assert set(client.sent) - client.reset <= reached <= set(client.sent)  # what is reset in the same read begins not
    for each in stage.asked:
        stream = each.exchange.stream_id  # type: ignore[attr-defined]
        assert each.ends == 1
        if stream in client.reset:
            assert each.cancellations == 1
            assert client.sent[stream].startswith(each.body)
            continue
        assert each.cancellations == 0
        assert each.body == client.sent[stream]
        assert each.trailers == client.trailers.get(stream)
        assert client.got.get(stream, b"") == client.answers[stream]
    assert client.ended == set(client.sent) - client.reset
    # Nothing is left, and what we gave back is what we received.
    assert not stage.connection.streams
    assert client.protocol.outbound_flow_control_window == stage.connection.table.receive_window
    stage.leaves()
    assert not stage.factory.connections
    assert not stage.deadlines._items


# -- any frames: our server and h2's ---------------------------------------------------------------------------------


class Ours:
    """Our server on a stage, with the same view of it as the oracle."""

    def __init__(self) -> None:
        self.stage = Stage(streams=100)
        self.stage.send(b"")
        self._resets = 0  # that were looked at

    def feed(self, data: bytes) -> Verdict:
        self.stage.send(data)
        resets = self.stage.seen.of(raw.RST_STREAM)
        fresh = {one.stream: one.code for one in resets[self._resets :]}
        self._resets = len(resets)
        return Verdict(connection_error=self.stage.seen.goaway, stream_errors=fresh)

    @property
    def received(self) -> dict[int, Received]:
        found = {}
        for each in self.stage.asked:
            head = each.exchange.head
            found[each.exchange.stream_id] = Received(  # type: ignore[attr-defined]
                method=head.method,
                target=head.target,
                host=head.host,
                fields=each.fields,
                body=each.body,
                complete=each.exchange.body_complete,
                trailers=each.trailers or [],
                reset=bool(each.cancellations),
            )
        return found


class Difference(NamedTuple):
    """Where we are not of one mind with h2, and what permits our view of it."""

    section: str
    why: str
    holds: Callable[[raw.Frame, Verdict, Verdict], bool]  # the (first) frame, what h2 says, what we say


DIFFERENCES = (
    Difference(
        "RFC 9113 5.4.2",
        "a stream error may be a connection error, which h2 makes of most of them",
        lambda _, theirs, mine: (theirs.kind, mine.kind) == ("connection", "stream"),
    ),
    Difference(
        "RFC 9113 8.2.1, 8.3.1, 8.1.1",
        "h2 does not look at the characters of :path, and at no content-length of a body that ends with trailers",
        lambda one, theirs, mine: one.kind == raw.HEADERS and (theirs.kind, mine.kind) == ("fine", "stream"),
    ),
    Difference(
        "RFC 9113 5.1",
        "HEADERS or DATA on a closed stream are a connection error; h2 sends RST_STREAM",
        lambda one, theirs, mine: (theirs.kind, mine.connection_error) == ("stream", raw.STREAM_CLOSED),
    ),
    Difference(
        "RFC 9113 6.10",
        "a CONTINUATION behind the end of a header block is a connection error",
        lambda one, theirs, mine: one.kind == raw.CONTINUATION and mine.connection_error == raw.PROTOCOL_ERROR,
    ),
    Difference(
        "RFC 9113 5.1",
        "frames behind our own RST_STREAM are ignored; h2 sends another one",
        lambda one, theirs, mine: (
            one.kind in (raw.DATA, raw.HEADERS) and (theirs.kind, mine.kind) == ("stream", "fine")
        ),
    ),
    Difference(
        "RFC 9113 5.4.2",
        "RST_STREAM is not answered by RST_STREAM",
        lambda one, theirs, mine: one.kind == raw.RST_STREAM and (theirs.kind, mine.kind) == ("stream", "fine"),
    ),
    Difference(
        "RFC 9113 6.9",
        "the reserved bit of WINDOW_UPDATE is ignored; h2 reads it as a part of the increment",
        lambda one, theirs, mine: one.kind == raw.WINDOW_UPDATE and one.number > raw.MAX_WINDOW and mine.kind == "fine",
    ),
    Difference(
        "RFC 9113 8.4",
        "a client cannot push; h2 does not mind on some streams",
        lambda one, theirs, mine: one.kind == raw.PUSH_PROMISE and mine.connection_error == raw.PROTOCOL_ERROR,
    ),
    Difference(
        "RFC 9113 5.1",
        "RST_STREAM and WINDOW_UPDATE on an idle stream are a connection error; h2 does not mind below its greatest id",
        lambda one, theirs, mine: (
            one.kind in (raw.RST_STREAM, raw.WINDOW_UPDATE) and mine.connection_error == raw.PROTOCOL_ERROR
        ),
    ),
)


@settings(max_examples=100)
@given(sequences)
def test_any_sequence(chosen: list[Step]) -> None:
    composer, oracle, ours = Composer(), ServerOracle(), Ours()
    assert oracle.feed(raw.PREFACE + raw.settings() + raw.SETTINGS_ACK).kind == "fine"
    for name, *arguments in chosen:
        sent = {**RIGHT, **WRONG}[name][0](composer, *arguments)
        if sent is None:
            continue
        first = raw.parse(sent)[0][0]
        theirs, mine = oracle.feed(sent), ours.feed(sent)
        if theirs.kind != mine.kind:
            assert any(each.holds(first, theirs, mine) for each in DIFFERENCES), (name, sent, theirs, mine)
            break
        if mine.kind == "connection" or first.kind == raw.GOAWAY:  # behind one h2 takes nothing more
            break
        assert set(theirs.stream_errors) == set(mine.stream_errors)
        for stream in mine.stream_errors:
            if stream in composer.open:
                composer.open.remove(stream)
                composer.ended.append(stream)
        failed = set(ours.stage.seen.resets)
        expected = {stream: one for stream, one in oracle.received.items() if stream not in failed}
        assert {stream: one for stream, one in ours.received.items() if stream not in failed} == expected
    stage = ours.stage
    if not stage.over:
        assert not stage.seen.goaway
    stage.leaves()
    assert all(each.ends == 1 for each in stage.asked)
    assert not stage.connection.streams
    assert not stage.factory.connections
    assert not stage.deadlines._items
