"""What a client gets through the keeper: the bytes of one process, with back-pressure, whatever happens to that."""

from __future__ import annotations

import gc
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel

from mcproxy.aggregate.request import AggregatedRequest
from mcproxy.aggregate.writes.held_bodies import BodyBuffers
from mcproxy.config import model
from mcproxy.http.exchange import Exchange
from mcproxy.http.h1.h1_exchange import H1Exchange
from mcproxy.http.messages import RequestHead
from mcproxy.proxy.aggregated_request import LocalAggregatedRequest
from mcproxy.proxy.keeper.keeper_exchange import KeeperExchange
from mcproxy.proxy.keeper.keeper_frames import FrameType, encode
from mcproxy.proxy.keeper.worker_relay import Relay
from mcproxy.proxy.request import Request
from tests.proxy.harness import Client, Harness, get
from tests.proxy.keeper.harness import KeeperHarness
from tests.proxy.test_aggregate_requests import ALICE, NAMES, PODS, Bench, Watch
from tests.support.attributes import attributes_of
from tests.support.clock import Clock
from tests.support.logged import captured_logs

Answer = Callable[[AggregatedRequest], Awaitable[None]]
CONFIG_MAP = PODS.replace(b"pods", b"configmaps")
WATCH = PODS + b"?watch=1"


class Silent:
    """The handler of an exchange, which notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def body_data(self, data: bytes) -> None:
        self.told.append("data")

    def body_end(self, trailers: Any) -> None:
        self.told.append("end")

    def cancelled(self) -> None:
        self.told.append("cancelled")

    def pause_response(self) -> None:
        self.told.append("pause")

    def resume_response(self) -> None:
        self.told.append("resume")

    def end_gracefully(self) -> None:
        self.told.append("finish")


# -- the same bytes -------------------------------------------------------------------------------------------------


async def whole(request: AggregatedRequest) -> None:
    request.exchange.answer(200, request.own_fields(b"X-A: b\r\n"), b"{}")


async def empty(request: AggregatedRequest) -> None:
    request.exchange.answer(204, request.own_fields(), b"")


async def large(request: AggregatedRequest) -> None:
    request.exchange.answer(200, request.own_fields(), b"0123456789" * 60_000)


async def not_modified(request: AggregatedRequest) -> None:
    request.exchange.respond(304, b"Not Modified", request.own_fields(b'ETag: "a"\r\n'), 0)
    request.exchange.end()


async def in_pieces(request: AggregatedRequest) -> None:
    exchange = request.exchange
    exchange.attach(Silent())
    exchange.respond(200, b"Fine", request.own_fields(), -1)
    exchange.write_pieces([b"a" * 9, b"b"], 10)
    exchange.flush()
    exchange.write(b"c" * 70_000)
    exchange.write_shared(b"d", b"1\r\nd\r\n")
    exchange.end()


async def echo(request: AggregatedRequest) -> None:
    held = BodyBuffers(cast(Any, Clock())).of("alice")
    request.exchange.answer(201, request.own_fields(), await held.read(request.exchange, 100_000))


async def bug(request: AggregatedRequest) -> None:
    raise ZeroDivisionError


BODY = b"POST %b HTTP/1.1\r\nHost: k8s.test\r\nAuthorization: Bearer alice\r\n" % CONFIG_MAP
REQUESTS: dict[str, tuple[Answer, bytes]] = {
    "whole": (whole, get(PODS, ALICE)),
    "HEAD": (whole, get(PODS, ALICE, method=b"HEAD")),
    "HTTP/1.0": (in_pieces, get(PODS, ALICE).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "no content": (empty, get(PODS, ALICE, method=b"DELETE")),
    "large": (large, get(PODS, ALICE)),
    "large HEAD": (large, get(PODS, ALICE, method=b"HEAD")),
    "not modified": (not_modified, get(PODS, ALICE)),
    "pieces": (in_pieces, get(PODS, ALICE)),
    "close": (in_pieces, get(PODS, ALICE, b"Connection: close")),
    "body": (echo, BODY + b"Content-Length: 3\r\n\r\nabc"),
    "chunked": (echo, BODY + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"),
    "too large": (echo, BODY + b"Content-Length: 200000\r\n\r\n"),
    "cors": (whole, get(PODS, ALICE, b"Origin: https://page.test")),
    "bug": (bug, get(PODS, ALICE)),
    "echoed Audit-ID": (whole, get(PODS, ALICE, b"Audit-ID: mine")),
}


async def reply(harness: Harness, answer: Answer, request: bytes) -> tuple[bytes, tuple[Any, ...]]:
    """What the client gets, and what the access log says; without what differs from time to time."""
    bench = Bench(harness)
    bench.handler.answer = answer
    await bench.serve(fields={"cors": model.CORS(("https://page.test",))})
    client = await harness.asks(request)
    await harness.until(lambda: harness.records, "the record")
    before = -1
    while len(client.received) > before:  # the last of a large answer is still in sockets
        before = len(client.received)
        await harness.turns()
    client.abort()
    received = re.sub(rb"(Date|Audit-Id): [^\r]*", rb"\1: -", client.received)
    record = attributes_of(harness.records[-1])
    for name in ("time", "request_id", "first_byte", "total", "upstream"):
        record[name] = bool(record[name])
    return received, tuple(record.items())


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_bytes_and_the_log_are_those_of_one_process(harness: KeeperHarness, name: str) -> None:
    answer, request = REQUESTS[name]
    through = await reply(harness, answer, request)
    one = Harness(harness.reactor)
    try:
        alone = await reply(one, answer, request)
    finally:
        await one.close()
    assert through == alone
    assert through[0].startswith(b"HTTP/1.1 ")


# -- bodies and back-pressure -----------------------------------------------------------------------------------------


async def opened(harness: KeeperHarness, answer: Answer, request: bytes) -> tuple[Bench, Client]:
    bench = Bench(harness)
    bench.handler.answer = answer
    await bench.serve()
    client = await harness.asks(request)
    await harness.until(lambda: bench.handler.requests, "the request")
    return bench, client


def test_the_body_of_a_large_answer_to_head_is_not_sent_to_the_worker() -> None:
    sent: list[tuple[int, int]] = []

    class Connection:
        def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
            sent.append((kind, len(payload)))

        def over(self, exchange: object) -> None:
            """Nothing."""

    head = RequestHead()
    head.method, head.length = b"HEAD", 0
    exchange = KeeperExchange(cast(Any, Connection()), 1, cast(Any, None), head, 0.0)
    exchange.answer(200, b"A: b\r\n", bytes(10_000_000))
    assert [kind for kind, _ in sent] == [FrameType.RESPOND, FrameType.END]
    assert sum(size for _, size in sent) < 100
    assert exchange.completed


async def test_the_body_is_asked_for_when_the_handler_wants_it(harness: KeeperHarness) -> None:
    goes_on = Deferred[None]()

    async def later(request: AggregatedRequest) -> None:
        await goes_on
        await echo(request)

    _, client = await opened(harness, later, BODY + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    await harness.turns()
    assert client.received == b""
    goes_on.callback(None)
    await harness.until(lambda: client.received == b"HTTP/1.1 100 Continue\r\n\r\n", "100")
    client.send(b"abc")
    await harness.until(lambda: client.received.endswith(b"\r\n\r\nabc"), "the answer")


async def test_the_handler_can_hold_a_body_back(harness: KeeperHarness) -> None:
    handlers: list[Silent] = []

    async def hold(request: AggregatedRequest) -> None:
        handlers.append(Silent())
        request.exchange.attach(handlers[0])
        request.exchange.pause_body()

    bench, client = await opened(harness, hold, BODY + b"Content-Length: 50000000\r\n\r\n")
    client.send(b"x" * 50_000_000)
    await harness.turns(100)
    exchange = bench.handler.requests[0].exchange
    held = exchange.bytes_in
    assert held < 10_000_000
    exchange.resume_body()
    await harness.until(lambda: "end" in handlers[0].told, "the rest")
    exchange.answer(200, b"", b"{}")
    await harness.until(lambda: client.received.endswith(b"{}"), "the answer")


async def test_a_client_that_reads_nothing_holds_the_handler_back(harness: KeeperHarness) -> None:
    handler = Silent()

    async def stream(request: AggregatedRequest) -> None:
        request.exchange.attach(handler)
        request.exchange.respond(200, b"", b"", -1)
        request.exchange.flush()

    bench, client = await opened(harness, stream, get(PODS, ALICE))
    await harness.until(lambda: client.received, "the head")
    client.transport.pauseProducing()  # type: ignore[union-attr]
    exchange, written = bench.handler.requests[0].exchange, 0
    while "pause" not in handler.told:
        exchange.write(b"x" * 65536)
        exchange.flush()
        written += 65536
        await harness.turns(1)
        assert written < 50_000_000
    client.transport.resumeProducing()  # type: ignore[union-attr]
    await harness.until(lambda: handler.told[-1] == "resume", "the client")
    exchange.end()
    await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "the end")
    assert client.received.count(b"x") == written


async def test_a_worker_that_reads_nothing_holds_all_handlers_back_until_it_reads_again(harness: KeeperHarness) -> None:
    handler = Silent()

    async def stream(request: AggregatedRequest) -> None:
        request.exchange.attach(handler)
        request.exchange.respond(200, b"", b"", -1)
        request.exchange.flush()

    bench, client = await opened(harness, stream, get(PODS, ALICE))
    await harness.until(lambda: client.received, "the head")
    link = harness.client_of_keeper._link
    assert link is not None
    link.transport.pauseProducing()
    exchange, written = bench.handler.requests[0].exchange, 0
    while "pause" not in handler.told:
        exchange.write(b"x" * 65536)
        exchange.flush()
        written += 65536
        await harness.turns(1)
        assert written < 50_000_000
    assert b"x" not in client.received
    link.transport.resumeProducing()
    await harness.until(lambda: handler.told[-1] == "resume", "the worker")
    exchange.write(b"x")
    exchange.flush()
    written += 1
    await harness.until(lambda: client.received.count(b"x") == written, "the rest")
    assert handler.told[-1] == "resume", "the worker reads, so nothing is held back any more"
    exchange.end()
    await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "the end")
    assert client.received.count(b"x") == written


@pytest.mark.parametrize("answer", [whole, in_pieces, empty, large])
async def test_a_request_that_was_answered_is_over_in_the_keeper(harness: KeeperHarness, answer: Answer) -> None:
    bench, client = await opened(harness, answer, get(PODS, ALICE))
    await harness.until(lambda: harness.records, "the record")
    assert not harness.keeper.running
    (link,) = harness.server._links
    assert link._streams == {}
    await harness.until(lambda: client.received.startswith(b"HTTP/1.1 20"), "the answer")
    assert bench.handler.requests


async def test_who_waits_for_a_keeper_is_refused_when_the_worker_stops(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    await bench.serve()
    harness.kill_keeper()
    await harness.until(lambda: harness.client_of_keeper._link is None, "the end of the connection")
    harness.client_of_keeper.patience = 1000.0
    client = await harness.asks(get(PODS, ALICE))
    await harness.until(lambda: harness.client_of_keeper._waiting, "the request to wait")
    harness.client_of_keeper.close()
    await harness.until(lambda: client.received.startswith(b"HTTP/1.1 503 "), "the refusal")
    assert harness.client_of_keeper._waiting == []


async def test_a_client_that_goes_away_stops_the_handler_at_once(harness: KeeperHarness) -> None:
    handler = Silent()

    async def attach(request: AggregatedRequest) -> None:
        request.exchange.attach(handler)

    _, client = await opened(harness, attach, BODY + b"Content-Length: 3\r\n\r\na")
    await harness.until(lambda: "data" in handler.told, "the body")
    client.abort()
    await harness.until(lambda: handler.told[-1] == "cancelled", "the end")
    await harness.until(lambda: not harness.keeper.running, "nothing to be in flight")


async def test_a_bug_of_one_handler_ends_one_request(harness: KeeperHarness) -> None:
    class Broken(Silent):
        def body_data(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def attach(request: AggregatedRequest) -> None:
        request.exchange.attach(Broken())

    bench = Bench(harness)
    watches = Watch.of(bench)
    await bench.serve()
    watch = await bench.ask(WATCH, ALICE)
    bench.handler.answer = attach
    client = await harness.asks(BODY + b"Content-Length: 3\r\n\r\nabc")
    await harness.until(lambda: client.over, "the end")
    watches[0].request.exchange.write(b'{"type":"ADDED"}\n')
    await harness.until(lambda: watch.received.endswith(b'"}\n\r\n'), "the event")


async def test_a_bug_in_the_relaying_of_an_event_ends_one_watch(
    harness: KeeperHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(harness)
    watches = Watch.of(bench)
    await bench.serve()
    first, second = [await bench.ask(WATCH, ALICE) for _ in range(2)]
    write = H1Exchange.write_shared
    broken: list[Any] = []

    def write_shared(exchange: H1Exchange, data: bytes, chunk: bytes) -> None:
        if not broken or exchange is broken[0]:
            broken[:] = [exchange]
            raise ZeroDivisionError
        write(exchange, data, chunk)

    monkeypatch.setattr(H1Exchange, "write_shared", write_shared)
    data = b'{"type":"ADDED"}\n'
    with captured_logs() as logged:
        for watch in watches:
            watch.request.exchange.write_shared(data, b"11\r\n%b\r\n" % data)
        await harness.until(lambda: second.received.endswith(data + b"\r\n"), "the event")
        await harness.until(lambda: first.over, "the end of the other")
    assert data not in first.received
    assert [line["event"] for line in logged if line["log_level"] is LogLevel.critical] == ["internal_error"]
    await harness.until(lambda: harness.keeper.running == 1, "the keeper to be told")


@pytest.mark.slow
async def test_finished_requests_leave_no_cycles(harness: KeeperHarness) -> None:
    def left() -> list[str]:
        kinds = (Exchange, Request, Relay, LocalAggregatedRequest)
        return [type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds)]

    bench = Bench(harness)
    await bench.serve()
    answers: list[Answer] = [whole, in_pieces, empty, whole, whole]
    gc.collect()  # before the client comes: it may take as long as a client has for its request
    gc.disable()
    try:
        before = left()
        client = await harness.client()
        for number, answer in enumerate(answers, 1):
            bench.handler.requests.clear()
            bench.handler.answer = answer
            client.send(get(PODS, ALICE))
            await harness.until(lambda number=number: client.received.count(b"HTTP/1.1 ") == number)  # type: ignore[misc]
            await harness.turns()
        bench.handler.requests.clear()
        assert len(left()) <= len(before) + 4  # those of the last one may still be referred to
    finally:
        gc.enable()


async def test_watchers_of_the_same_get_it_once(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    watches = Watch.of(bench)
    await bench.serve()
    clients = [await bench.ask(WATCH, ALICE) for _ in range(3)]
    link = harness.client_of_keeper._link
    assert link is not None
    frames: list[tuple[int, int, bytes]] = []
    frame = link.frame

    def received(*each: Any) -> None:
        frames.append(each)
        frame(*each)

    link.frame = received  # type: ignore[method-assign, assignment]
    data = b'{"type":"ADDED"}\n'
    for watch in watches:
        watch.request.exchange.write_shared(data, b"11\r\n%b\r\n" % data)
    await harness.until(lambda: all(client.received.endswith(data + b"\r\n") for client in clients), "the event")
    [(kind, _, payload)] = frames
    assert kind == FrameType.SHARED
    assert payload.count(data) == 1


# -- the keeper's end -------------------------------------------------------------------------------------------------


class Waiting:
    """A handler that waits; `open_` are those that do."""

    def __init__(self) -> None:
        self.open_: list[Deferred[None]] = []

    async def __call__(self, request: AggregatedRequest) -> None:
        self.open_.append(Deferred())
        await self.open_[-1]
        await whole(request)


async def test_a_read_without_an_answer_is_asked_of_the_successor(harness: KeeperHarness) -> None:
    waiting = Waiting()
    bench, client = await opened(harness, waiting, get(PODS, ALICE))
    harness.kill_keeper()
    await harness.turns()
    assert client.received == b""
    bench.handler.answer = whole
    harness.start_keeper()
    await harness.turns()
    assert client.received == b""  # its successor has no configuration yet
    await harness.serve_keeper()
    await harness.until(lambda: client.received.endswith(b"{}"), "the answer")
    assert len(bench.handler.requests) == 2


async def test_a_write_without_an_answer_is_not_repeated(harness: KeeperHarness) -> None:
    bench, client = await opened(harness, Waiting(), get(CONFIG_MAP, ALICE, method=b"DELETE"))
    harness.kill_keeper()
    harness.start_keeper()
    await harness.serve_keeper()
    await harness.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 502
    assert b"may have taken effect" in client.received
    assert (await bench.record()).reason == "upstream_closed"
    assert len(bench.handler.requests) == 1


async def test_a_watch_ends_cleanly_and_another_response_is_broken_off(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    watches = Watch.of(bench)
    await bench.serve()
    watch = await bench.ask(WATCH, ALICE)
    watches[0].request.exchange.write(b'{"type":"ADDED"}\n')

    async def begin(request: AggregatedRequest) -> None:
        request.exchange.attach(Silent())
        request.exchange.respond(200, b"", request.own_fields(), -1)
        request.exchange.write(b'{"items":[')
        request.exchange.flush()

    bench.handler.answer = begin
    other = await bench.ask(PODS, ALICE)
    await harness.until(lambda: other.received.endswith(b"[\r\n"), "its beginning")
    # The beginning of an event that never comes whole is not told to anybody.
    [link] = harness.server._links
    link.transport.write(encode(FrameType.DATA, 1, b'{"type":"DELETED"}\n')[:-5])
    await harness.turns()
    harness.kill_keeper()
    await harness.until(lambda: watch.over or watch.received.endswith(b"0\r\n\r\n"), "the end of the watch")
    assert watch.received.endswith(b'ADDED"}\n\r\n0\r\n\r\n')
    await harness.until(lambda: other.over, "the end of the other")
    assert other.received.endswith(b"[\r\n")
    assert sorted(record.reason for record in harness.records) == ["upstream_broken", "upstream_closed_watch"]


async def test_what_is_forwarded_goes_on(harness: KeeperHarness) -> None:
    bench = Bench(harness)

    async def forward(request: AggregatedRequest) -> None:
        await request.forward("west", PODS + b"/a/log?follow=1")

    bench.handler.answer = forward
    await bench.serve()
    upstream = bench.upstreams["west"]
    upstream.reply = None
    client = await harness.asks(get(PODS + b"/a/log?follow=1", ALICE))
    await harness.until(lambda: upstream.received, "the request")
    assert not harness.keeper.running
    upstream.last.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n")
    await harness.until(lambda: client.received.endswith(b"a\n\r\n"), "a line")
    harness.kill_keeper()
    upstream.last.send(b"2\r\nb\n\r\n0\r\n\r\n")
    await harness.until(lambda: client.received.endswith(b"b\n\r\n0\r\n\r\n"), "the end")
    assert (await bench.record()).reason == "ok"


async def test_without_a_keeper_requests_wait_and_then_get_503(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    await bench.serve()
    harness.kill_keeper()
    await harness.until(lambda: harness.client_of_keeper._link is None, "its end")
    harness.client_of_keeper.patience = 0.1
    client = await bench.ask(PODS, ALICE)
    assert client.answer()[0] == 503
    assert client.answer()[1]["retry-after"] == "5"
    assert b'"retryAfterSeconds":5' in client.received


async def test_only_so_many_wait(harness: KeeperHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcproxy.proxy.keeper.keeper_client.MAX_WAITING", 2)
    bench = Bench(harness)
    await bench.serve()
    harness.kill_keeper()
    await harness.until(lambda: harness.client_of_keeper._link is None, "its end")
    waiting = [await harness.asks(get(PODS, ALICE)) for _ in range(2)]
    await harness.until(lambda: len(harness.client_of_keeper._waiting) == 2, "both")
    assert (await bench.ask(PODS, ALICE)).answer()[0] == 503
    waiting[0].abort()
    await harness.until(lambda: len(harness.client_of_keeper._waiting) == 1, "one to go away")
    harness.start_keeper()
    await harness.serve_keeper()
    await harness.until(lambda: waiting[1].received, "the answer")
    assert waiting[1].answer()[0] == 200


async def test_a_peer_that_speaks_something_else_is_cut_off(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    await bench.serve()
    harness.client_of_keeper.patience = 0.1
    link = harness.client_of_keeper._link
    assert link is not None
    link.send(FrameType.END, 7)  # of a stream that is not there: it is dropped
    assert (await bench.ask(PODS, ALICE)).answer()[0] == 200
    with captured_logs() as logged:
        link.send(FrameType.OPEN, 1, b"no request of a worker")
        await harness.until(lambda: link.lost, "the end")
    assert [line["event"] for line in logged if line["log_level"] is LogLevel.error] == ["keeper_link_broken"]
    assert (await bench.ask(PODS, ALICE)).answer()[0] == 503


# -- reloads --------------------------------------------------------------------------------------------------------


async def test_a_watch_is_decided_again_by_the_workers_configuration(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    Watch.of(bench)
    await bench.serve(fields={"backend": model.AggregateBackendConfig("fleet", ("east",))})
    await bench.ask(WATCH, ALICE)
    [request] = bench.handler.requests
    assert list(request.members) == ["east"]
    await bench.serve()
    await request.decide_again()
    assert request.members == NAMES
    assert request.user_for("west").name == "alice"


async def test_a_member_that_the_keeper_has_first_waits_for_the_worker(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    await bench.serve(fields={"backend": model.AggregateBackendConfig("fleet", ("east",))})
    worker, harness.service = harness.service, harness.keeper
    configurations: list[model.Config] = []

    async def keep(configuration: model.Config) -> None:
        configurations.append(configuration)
        harness._configuration = configuration
        await harness.serve_keeper()

    harness.serve = keep  # type: ignore[method-assign]
    await bench.serve()
    harness.service = worker
    client = await harness.asks(get(PODS, ALICE))
    await harness.turns()
    assert bench.handler.requests == []
    await worker.apply(configurations[0])
    await harness.until(lambda: client.received, "the answer")
    assert bench.handler.requests[0].members == NAMES


async def test_an_aggregate_that_the_keeper_has_no_more_is_503(
    harness: KeeperHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(harness)
    await bench.serve()
    harness.server.serve(dict)
    monkeypatch.setattr("mcproxy.proxy.keeper.worker_relay._FOLLOWS_WITHIN", 0.1)
    client = await bench.ask(PODS, ALICE)
    assert client.answer()[0] == 503
    assert client.answer()[1]["retry-after"] == "1"
    assert (await bench.record()).reason == "upstream_unreachable"


async def test_a_read_of_an_aggregate_that_goes_away_is_begun_anew_by_the_worker(harness: KeeperHarness) -> None:
    bench = Bench(harness)
    await bench.serve()
    harness.server.serve(dict)
    client = await harness.asks(get(PODS, ALICE))
    await harness.turns()
    assert client.received == b""
    await bench.serve(fields={"backend": model.ClusterBackend("east")})
    await harness.until(lambda: client.received.endswith(b"{}"), "the answer of the cluster")
    assert b"/api/v1/namespaces/demo/pods" in bench.upstreams["east"].received
    assert bench.handler.requests == []
