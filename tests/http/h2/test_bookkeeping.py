"""Whatever frames come and handlers do: the counts of a connection are those of its streams, and nothing stays.

Random scripts, each from a seed: a failing one can be run again alone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from mcproxy.http.h2.frames import (
    CONTINUATION,
    DATA,
    PRIORITY,
    WINDOW_UPDATE,
    encode_settings,
    frame,
    ping,
    rst_stream,
)
from tests.http.h1.harness import Handled
from tests.http.h2.harness import H2ServerHarness, headers, request

SCRIPTS = 400


class Script:
    """One connection with a client and handlers that do what comes to their minds."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        choice = self.random.choice
        self.stage = H2ServerHarness(
            streams=choice([3, 50, 250]),
            stall_timeout=choice([0, 3]),
            body_bytes=choice([0, 0, 30_000]),
            head_bytes=choice([300, 65536]),
            attach=choice([True, True, False]),
            goaway_chance=choice([0, 0, 0.6]),
        )
        self.next_id = 1
        self.blocked = False

    def run(self) -> None:
        for _ in range(self.random.randint(1, 60)):
            if not self.stage.wire.open:
                break
            self.client_acts()
            for handled in list(self.stage.requests):
                if not handled.exchange.ended:
                    self.handler_acts(handled)
            self.world_acts()
            self.check()
        self.stage.wire.lose()
        self.check_end()

    # -- actors --

    def client_acts(self) -> None:
        random = self.random
        kinds: list[Callable[[int], bytes]] = [
            self.request,
            self.request,
            lambda number: frame(DATA, random.choice([0, 0, 1, 8]), number, bytes(random.choice([0, 1, 5, 16384]))),
            lambda number: frame(DATA, 0, number, bytes(random.choice([5, 100, 16384]))),
            lambda number: frame(
                WINDOW_UPDATE, 0, number, random.choice([0, 1, 100, 70_000, 70_000, 2**31 - 1]).to_bytes(4, "big")
            ),
            lambda number: frame(WINDOW_UPDATE, 0, 0, (70_000).to_bytes(4, "big")),
            lambda number: rst_stream(number, random.randint(0, 13)),
            lambda number: encode_settings(
                [(random.choice([1, 3, 4, 4, 6, 9]), random.choice([0, 1, 100, 16384, 2**20]))]
            ),
            lambda number: ping(bytes(8), ack=random.choice([True, False])),
            lambda number: headers(number, b"\x00\x01a\x01b", random.choice([4, 5, 5, 5])),
            lambda number: frame(PRIORITY, 0, number, bytes(5)),
        ]
        sent = []
        for _ in range(random.randint(1, 8)):
            number = random.choice([max(1, self.next_id - 2), max(1, self.next_id - 6), random.choice([1, 3, 5])])
            sent.append(random.choice(kinds)(number))
        if random.random() < 0.02:
            sent.append(frame(random.choice([CONTINUATION, 5, 12]), random.randint(0, 255), 1, bytes(9)))
        self.stage.sends(*sent)

    def request(self, _: int) -> bytes:
        random = self.random
        number, self.next_id = self.next_id, self.next_id + 2
        fields = random.choice([b"", b"\x0f\x0d\x015", b"\x00\x02te\x08trailers"])
        method = random.choice([b"GET", b"POST", b"HEAD", b"TRACE"])
        return request(number, method, end=random.choice([True, False]), fields=fields)

    def handler_acts(self, handled: Handled) -> None:
        random, exchange = self.random, handled.exchange
        action = random.random()
        if action < 0.1:
            handled.answer(bytes(random.choice([0, 2, 1000, 50_000])))
        elif action < 0.3:
            if not exchange.responded:
                exchange.respond(200, b"", b"", -1)
            exchange.write(bytes(random.choice([1, 1000, 40_000])))
            if random.random() < 0.8:
                exchange.flush()
        elif action < 0.35 and exchange.responded:
            exchange.end([(b"a", b"b")])
        elif action < 0.38:
            exchange.abort()
        elif action < 0.45:
            exchange.pause_body()
        elif action < 0.55:
            exchange.resume_body()
        elif action < 0.57:
            exchange.set_long_running()
        elif action < 0.6 and exchange.handler is None:
            exchange.attach(handled)

    def world_acts(self) -> None:
        random, stage = self.random, self.stage
        if random.random() < 0.1:
            self.blocked = not self.blocked
            stage.wire.block() if self.blocked else stage.wire.unblock()
        if random.random() < 0.6:
            stage.gets()
        if random.random() < 0.1:
            stage.passes(random.choice([0.25, 1, 4, 40]))
        if random.random() < 0.01:
            stage.factory.drain()

    # -- what holds always --

    def check(self) -> None:
        connection = self.stage.connection
        streams = connection.streams.values()
        assert connection.sender.queued == sum(stream.queued for stream in streams)
        assert connection.table.held == sum(stream.held for stream in streams)
        for stream in streams:
            assert 0 <= stream.queued <= stream.unsent
            assert stream.unsent == sum(map(len, stream.pieces or [])) - stream.offset
            assert stream.is_ready == (stream in connection.sender.ready)
            assert stream.is_ready or not stream.queued or stream.send_window <= 0, "forgotten"
            assert stream.queued or not stream.send_paused or connection.sender.backlogged, "paused for ever"

    def check_end(self) -> None:
        stage = self.stage
        assert [handled.ends for handled in stage.requests] == [1] * len(stage.requests)
        assert not stage.connection.streams
        assert not stage.factory.connections
        assert not stage.deadlines._items


@pytest.mark.parametrize("first", range(0, SCRIPTS, 100))
def test_counts_are_right_and_nothing_stays(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            Script(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
