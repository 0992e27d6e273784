"""DATA towards a client: windows, turns between streams, and what may wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.http.h2.frame_sender import CONNECTION_HIGH
from mcproxy.http.h2.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    encode_settings,
    frame,
)
from tests.http.h1.harness import Handled
from tests.http.h2.harness import Frame, H2ServerHarness, request

KIB = 1024


def update(stream_id: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def window(size: int) -> bytes:
    return encode_settings([(INITIAL_WINDOW_SIZE, size)])


def stage_with(count: int, *, connection: int = 2**30, stream: int = 65535, **bounds: Any) -> H2ServerHarness:
    """Streams whose responses have begun; the windows are those of the connection and of each stream."""
    stage = H2ServerHarness(**bounds)
    stage.sends(window(stream), update(0, connection - 65535) if connection > 65535 else b"")
    stage.sends(*[request(1 + 2 * number) for number in range(count)])
    for handled in stage.requests:
        handled.exchange.respond(200, b"", b"", -1)
        handled.exchange.flush()
    stage.gets()
    return stage


def writes(handled: Handled, size: int, piece: int = 16 * KIB) -> int:
    """Write as a handler does, until it is paused; return how much it got rid of."""
    written = 0
    while written < size and not handled.paused:
        handled.exchange.write(bytes(min(piece, size - written)))
        handled.exchange.flush()
        written += min(piece, size - written)
    return written


def sizes(found: list[Frame], stream_id: int) -> list[int]:
    return [len(one.payload) for one in found if one.kind == DATA and one.stream_id == stream_id]


def test_frames_have_at_most_16_kib() -> None:
    stage = stage_with(1)
    stage.last.exchange.write(bytes(50_000))
    stage.last.exchange.end()
    found = stage.gets()
    assert sizes(found, 1) == [16384, 16384, 16384, 848]
    assert [one.flags for one in found] == [0, 0, 0, END_STREAM]


def test_streams_take_turns_by_frames() -> None:
    stage = stage_with(3)
    for handled in stage.requests:
        handled.exchange.write(bytes(40_000))
        handled.exchange.end()
    assert [one.stream_id for one in stage.gets()] == [1, 3, 5, 1, 3, 5, 1, 3, 5]


def test_a_stream_without_a_window_holds_no_other() -> None:
    stage = stage_with(2)
    slow, quick = stage.requests
    slow.exchange.write(bytes(70_000))
    slow.exchange.flush()
    assert sum(sizes(stage.gets(), 1)) == 65535
    for _ in range(10):
        quick.exchange.write(bytes(16 * KIB))
        quick.exchange.flush()
        assert sizes(stage.gets(), 3) == [16 * KIB]
        stage.sends(update(3, 16 * KIB))
    stage.sends(update(1, 10))
    assert sizes(stage.gets(), 1) == [10]
    stage.sends(update(1, 100_000))
    assert sizes(stage.gets(), 1) == [70_000 - 65535 - 10]


def test_a_negative_window() -> None:
    stage = stage_with(1)
    stage.last.exchange.write(bytes(60_000))
    stage.last.exchange.flush()
    stage.gets()
    stage.sends(window(1000))
    stage.last.exchange.write(bytes(10_000))
    stage.last.exchange.flush()
    assert not sizes(stage.gets(), 1)
    stage.sends(update(1, 59_000))
    assert not sizes(stage.gets(), 1)
    stage.sends(update(1, 1))
    assert sizes(stage.gets(), 1) == [1]
    stage.sends(window(2000))
    assert sizes(stage.gets(), 1) == [1000]


def test_the_head_and_the_end_need_no_window() -> None:
    stage = H2ServerHarness()
    stage.sends(window(0), request(1), request(3), request(5))
    first, second, third = stage.requests
    first.exchange.respond(200, b"", b"", -1)
    first.exchange.end()
    second.exchange.respond(200, b"", b"", -1)
    second.exchange.write(b"x")
    second.exchange.flush()
    third.answer(b"")
    assert [(one.kind, one.stream_id, one.flags & 1) for one in stage.gets()] == [
        (SETTINGS, 0, 1),
        (HEADERS, 1, 1),
        (HEADERS, 3, 0),
        (HEADERS, 5, 1),
    ]


def test_trailers_wait_for_the_body() -> None:
    stage = H2ServerHarness()
    stage.sends(window(0), request(1, fields=b"\x00\x02te\x08trailers"))
    exchange = stage.last.exchange
    exchange.respond(200, b"", b"", -1)
    exchange.write(b"body")
    exchange.end([(b"a", b"b")])
    assert stage.last.ends == 1
    assert [one.kind for one in stage.gets()] == [SETTINGS, HEADERS]
    stage.sends(update(1, 100))
    assert [(one.kind, one.flags & 1) for one in stage.gets()] == [(DATA, 0), (HEADERS, 1)]
    assert not stage.connection.streams


def test_a_window_of_the_connection_is_shared() -> None:
    stage = stage_with(2, connection=65535)
    for handled in stage.requests:
        handled.exchange.write(bytes(50_000))
        handled.exchange.end()
    found = stage.gets()
    assert sum(sizes(found, 1)) + sum(sizes(found, 3)) == 65535
    assert stage.connection.sender.queued == 100_000 - 65535
    stage.sends(update(0, 100_000))
    found += stage.gets()
    assert sum(sizes(found, 1)) == sum(sizes(found, 3)) == 50_000
    assert stage.connection.sender.queued == 0


@pytest.mark.parametrize("stream", [1, 0])
def test_a_window_above_the_greatest(stream: int) -> None:
    stage = stage_with(1)
    stage.sends(update(stream, 2**31 - 1))
    if stream:
        [reset] = stage.gets()
        assert (reset.kind, reset.code) == (RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
        assert stage.last.cancellations == 1
    else:
        assert stage.ended_with == ErrorCode.FLOW_CONTROL_ERROR


def test_settings_that_make_a_window_too_large() -> None:
    stage = stage_with(1)
    stage.sends(update(1, 2**31 - 1 - 65535))
    assert not stage.gets()
    stage.sends(window(65536))
    assert stage.ended_with == ErrorCode.FLOW_CONTROL_ERROR


# -- what waits -------------------------------------------------------------------------------------------------------


def test_a_handler_is_paused_when_its_stream_has_much_waiting() -> None:
    stage = stage_with(1)
    assert writes(stage.last, 10**6) <= (64 + 64 + 16) * KIB
    stage.gets()
    stage.sends(update(1, 16 * KIB))
    stage.gets()
    assert stage.last.paused
    stage.sends(update(1, 64 * KIB))
    stage.gets()
    assert not stage.last.paused


def test_a_client_that_reads_one_stream_of_many() -> None:
    stage = stage_with(250)
    *unread, read = stage.requests
    for handled in unread:
        while not handled.paused:
            writes(handled, 16 * KIB)
            stage.gets()
    assert CONNECTION_HIGH < stage.connection.sender.queued <= 256 * KIB + 249 * 16 * KIB
    assert stage.connection.sender.backlogged
    assert not read.paused
    for _ in range(100):
        assert writes(read, 16 * KIB) == 16 * KIB
        assert sizes(stage.gets(), 499) == [16 * KIB]
        stage.sends(update(499, 16 * KIB))
        assert not read.paused


def test_a_client_that_reads_one_stream_of_many_with_a_small_window() -> None:
    stage = stage_with(250, stream=1000)
    *unread, read = stage.requests
    for handled in unread:
        while not handled.paused:
            writes(handled, 16 * KIB)
            stage.gets()
    assert stage.connection.sender.backlogged
    for _ in range(100):
        assert not read.paused
        writes(read, 5000, 5000)
        for _ in range(5):
            assert sizes(stage.gets(), 499) == [1000]
            stage.sends(update(499, 1000))
        stage.gets()


@pytest.mark.parametrize("small", [0, 1000])
def test_updates_of_one_byte_resume_no_stream_while_the_window_of_the_connection_is_used_up(small: int) -> None:
    """Each would add a frame that waits: 256 KiB became 16 KiB for each stream. `small`: bytes that wait for each."""
    stage = stage_with(160, connection=65535)
    waiting, large = stage.requests[:150], stage.requests[150:]
    if small:
        writes(large[0], 65535)  # nothing is left of the window of the connection
        stage.gets()
        for handled in waiting:
            writes(handled, small)
    for handled in large:
        writes(handled, 10**6)
        stage.gets()
    assert stage.connection.sender.send_window == 0
    assert stage.connection.sender.backlogged
    assert all(handled.paused for handled in stage.requests)
    before = stage.connection.sender.queued
    assert before > CONNECTION_HIGH
    written = 0
    for _ in range(3):
        for handled, number in zip(waiting, range(1, 301, 2), strict=True):
            stage.sends(update(number, 1))
            written += writes(handled, 10**6)
            stage.sends(update(0, 1))
            written += writes(handled, 10**6)
            stage.gets()
    assert all(handled.paused for handled in waiting)
    assert written == 0
    assert stage.connection.sender.queued == before - 3 * 150


def test_updates_of_one_byte_resume_no_stream_whose_own_window_is_used_up() -> None:
    stage = stage_with(160)
    waiting, large = stage.requests[:150], stage.requests[150:]
    for handled in waiting:
        writes(handled, 65535)
        stage.gets()
    for handled in large:
        writes(handled, 10**6)
        stage.gets()
    assert stage.connection.sender.backlogged
    assert all(handled.paused for handled in waiting)
    before = stage.connection.sender.queued
    for handled, number in zip(waiting, range(1, 301, 2), strict=True):
        stage.sends(update(number, 1))
        assert handled.paused
        stage.sends(update(0, 1))
        assert handled.paused
    assert stage.connection.sender.queued == before


def test_what_waits_of_a_stream_is_sent_before_more_is_added_to_it() -> None:
    """While too much waits, a window for one frame resumes no stream that has something waiting."""
    stage = stage_with(160, connection=65535)
    waiting, large = stage.requests[:150], stage.requests[150:]
    writes(large[0], 65535)
    stage.gets()
    for handled in waiting:
        writes(handled, 1000)
    for handled in large:
        writes(handled, 10**6)
    assert stage.connection.sender.backlogged
    before = stage.connection.sender.queued
    stage.wire.deliver(update(0, 16 * KIB))
    assert all(handled.paused for handled in waiting)
    sent = sum(len(one.payload) for one in stage.gets())
    assert (sent, stage.connection.sender.queued) == (16 * KIB, before - 16 * KIB)


def test_a_response_that_begins_while_too_much_waits() -> None:
    stage = stage_with(250, stream=0, streams=300)
    for handled in stage.requests:
        writes(handled, 10**6)
    assert stage.connection.sender.queued <= 256 * KIB + 250 * 16 * KIB
    stage.sends(request(501))
    assert stage.last.paused  # before it has written anything
    stage.sends(window(2**20))
    stage.gets()
    assert not bool(stage.last.paused)
    assert stage.connection.sender.queued == 0


def test_whole_answers_that_wait_pause_the_streams_that_would_add_to_them() -> None:
    stage = stage_with(10, stream=0)
    *whole, streamed = stage.requests
    for handled in whole:
        handled.exchange.write(bytes(100_000))
        handled.exchange.end()
    assert streamed.paused
    stage.sends(window(2**20))
    stage.gets()
    assert not streamed.paused


def test_a_full_send_buffer_pauses_all_and_goes_on_in_turn() -> None:
    stage = stage_with(20, connection=2**31 - 1, stream=2**30)
    stage.wire.block()
    written = sum(writes(handled, 10**6) for handled in stage.requests)
    assert written <= 256 * KIB + 20 * 16 * KIB
    assert all(handled.paused for handled in stage.requests)
    assert not stage.gets()
    stage.wire.unblock()
    found = stage.gets()
    assert sum(len(one.payload) for one in found) == written
    assert [one.stream_id for one in found[:3]] == [1, 3, 5]
    assert not any(handled.paused for handled in stage.requests)


def test_a_head_waits_for_the_send_buffer() -> None:
    stage = H2ServerHarness()
    stage.sends(request(1), request(3))
    stage.wire.block()
    stage.requests[0].answer()
    stage.requests[1].answer(b"")
    assert not stage.gets()
    assert len(stage.connection.streams) == 2  # they count for the client's limit
    stage.wire.unblock()
    assert [(one.kind, one.stream_id) for one in stage.gets()] == [(HEADERS, 1), (DATA, 1), (HEADERS, 3)]
    assert not stage.connection.streams


def test_a_reset_stream_drops_what_waits() -> None:
    stage = stage_with(250)
    for handled in stage.requests[:-1]:
        while not handled.paused:
            writes(handled, 16 * KIB)
            stage.gets()
    before = stage.connection.sender.queued
    assert stage.connection.sender.backlogged
    for number in range(1, 399, 2):
        stage.sends(frame(RST_STREAM, 0, number, bytes(4)))
    assert stage.connection.sender.queued < before / 4
    for number in range(399, 497, 2):
        stage.requests[(number - 1) // 2].exchange.abort()
    assert not bool(stage.connection.sender.backlogged)
    assert sum(one.queued for one in stage.connection.streams.values()) == stage.connection.sender.queued


def test_a_reset_stream_gives_up_its_turn_while_the_send_buffer_is_full() -> None:
    """Else a client that reads nothing, and resets what it asks for, would fill the memory with what it asked for."""
    stage = H2ServerHarness()
    stage.wire.block()
    for number in range(1, 41, 2):
        stage.sends(request(number))
        stage.last.answer()
        stage.sends(frame(RST_STREAM, 0, number, bytes(4)))
    assert not stage.connection.streams
    assert not stage.connection.sender.ready


def test_output_of_one_turn_is_handed_to_the_transport_in_parts() -> None:
    stage = stage_with(1, stream=2**30)
    handed = []
    stage.wire.write = lambda data: handed.append(len(data))  # type: ignore[method-assign]
    writes(stage.last, 10**6)
    assert max(handed) <= 96 * KIB
    assert sum(handed) >= 900_000


def test_answers_that_are_not_read_are_bounded() -> None:
    stage = H2ServerHarness()
    stage.wire.block()
    for _ in range(20):
        stage.sends(*[frame(PING, 0, 0, bytes(8)) for _ in range(400)])
        stage.wire.turn()
        stage.clock.advance(10)
        if not stage.wire.open:
            break
    assert stage.wire.aborted
    assert len(stage.wire.out) <= 68 * KIB
    assert stage.factory.protection == {"unread_answers": 1}


# -- a client that does not read --------------------------------------------------------------------------------------


def test_a_short_response_that_is_not_read() -> None:
    stage = H2ServerHarness(stall_timeout=10, idle_timeout=0)
    stage.sends(window(100), request(1), request(3))
    slow, other = stage.requests
    slow.exchange.respond(200, b"", b"", -1)
    slow.exchange.write(bytes(1000))
    slow.exchange.flush()
    stage.passes(9)
    stage.sends(update(1, 1))
    stage.passes(9)
    stage.gets()
    assert slow.cancellations == 0
    stage.passes(3)
    found = stage.gets()
    assert (found[-1].kind, found[-1].code) == (RST_STREAM, ErrorCode.CANCEL)
    assert (slow.cancellations, slow.ends, slow.exchange.stalled) == (1, 1, True)
    other.answer()
    assert len(stage.gets()) == 2


def test_a_response_that_has_ended_and_is_not_read() -> None:
    for lasting in (False, True):
        stage = H2ServerHarness(stall_timeout=10, idle_timeout=0)
        stage.sends(window(0), request(1))
        if lasting:
            stage.last.exchange.set_long_running()
        stage.last.answer(b"x" * 100)
        stage.gets()
        assert stage.last.ends == 1
        stage.passes(11)
        assert stage.gets()[-1].kind == RST_STREAM
        assert not stage.connection.streams


def test_a_long_running_response_that_is_not_read_is_waited_for() -> None:
    stage = H2ServerHarness(stall_timeout=10, idle_timeout=0)
    stage.sends(window(0), request(1))
    exchange = stage.last.exchange
    exchange.set_long_running()
    exchange.respond(200, b"", b"", -1)
    exchange.write(b"event")
    exchange.flush()
    for _ in range(10):
        stage.passes(25)
        stage.sends(frame(PING, 1, 0, b"mcproxy\0"))
    assert stage.last.cancellations == 0


def test_a_stream_that_waits_for_its_turn_is_not_stalled_while_the_client_reads() -> None:
    stage = stage_with(2, connection=65535, stream=2**20, stall_timeout=10, idle_timeout=0)
    for handled in stage.requests:
        handled.exchange.write(bytes(40_000))
        handled.exchange.flush()
    stage.gets()
    for _ in range(20):
        stage.passes(5)
        stage.sends(update(0, 10))
        stage.gets()
    assert not any(handled.cancellations for handled in stage.requests)
    stage.passes(25)
    assert all(handled.cancellations for handled in stage.requests)


# -- all of it --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_writes_and_windows_delivers_all_bytes_in_order(data: st.DataObject) -> None:
    stage = H2ServerHarness(stall_timeout=0)
    initial = data.draw(st.sampled_from([0, 1, 1000, 65535, 2**20]))
    stage.sends(window(initial))
    count = data.draw(st.integers(1, 4))
    stage.sends(*[request(1 + 2 * number) for number in range(count)])
    for handled in stage.requests:
        handled.exchange.respond(200, b"", b"", -1)
    written: list[bytes] = [b""] * count
    got: list[bytes] = [b""] * count
    windows = [initial] * count
    connection = 65535
    blocked = False
    ends: set[int] = set()

    def look() -> None:
        nonlocal connection
        for one in stage.gets():
            if one.kind == DATA:
                number = one.stream_id // 2
                assert len(one.payload) <= 16384
                got[number] += one.payload
                windows[number] -= len(one.payload)
                connection -= len(one.payload)
                assert connection >= 0
                assert not one.payload or windows[number] >= 0
            if one.kind in (DATA, HEADERS) and one.flags & END_STREAM:
                ends.add(one.stream_id // 2)

    for _ in range(data.draw(st.integers(1, 30))):
        number = data.draw(st.integers(0, count - 1))
        exchange = stage.requests[number].exchange
        action = data.draw(st.sampled_from(["write", "flush", "stream", "connection", "settings", "block", "end"]))
        if action == "write" and not exchange.ended:
            piece = bytes([len(written[number]) % 251]) * data.draw(st.sampled_from([1, 100, 16384, 40_000]))
            exchange.write(piece)
            written[number] += piece
        elif action == "flush":
            exchange.flush()
        elif action == "stream" and number not in ends:
            more = data.draw(st.sampled_from([1, 500, 20_000]))
            stage.sends(update(1 + 2 * number, more))
            windows[number] += more
        elif action == "connection":
            more = data.draw(st.sampled_from([1, 500, 20_000]))
            stage.sends(update(0, more))
            connection += more
        elif action == "settings":
            size = data.draw(st.sampled_from([0, 10, 70_000]))
            stage.sends(window(size))
            windows = [one + size - initial for one in windows]
            initial = size
        elif action == "block":
            blocked = not blocked
            stage.wire.block() if blocked else stage.wire.unblock()
        elif action == "end":
            exchange.end()
        look()
    stage.wire.unblock()
    stage.sends(window(2**20), update(0, 2**24))
    windows = [one + 2**20 - initial for one in windows]
    connection += 2**24
    for handled in stage.requests:
        handled.exchange.end()
    look()
    look()
    assert got == written
    assert ends == set(range(count))
    assert not stage.connection.streams
    assert stage.connection.sender.queued == 0
