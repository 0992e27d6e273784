"""Forwarding over HTTP/2 to a cluster: streams of many clients on one connection, refusals, ends, back-pressure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from twisted.logger import LogLevel

from mcproxy.config import model
from mcproxy.http.h2.h2_client import LARGEST_WINDOW
from tests.proxy.harness import OK, Client, Harness, cluster, config, get, plain
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream
from tests.support.logged import captured_logs, told

JSON = [(b":status", b"200"), (b"content-type", b"application/json")]
WATCH = b"/api/v1/pods?watch=true"
EXEC = b"/api/v1/namespaces/a/pods/b/exec?command=sh"
LOGGING = model.Logging(access=model.AccessLogConfig())


async def one(harness: Harness, **fields: Any) -> H2Upstream:
    """A proxy in front of one cluster that offers both versions."""
    upstream = harness.add(H2Upstream(harness.reactor))
    await serve(harness, upstream, **fields)
    return upstream


async def serve(harness: Harness, *upstreams: H2Upstream, **fields: Any) -> None:
    endpoints = [upstream.endpoint(name) for name, upstream in zip("abc", upstreams, strict=False)]
    await harness.serve(config([cluster(*endpoints, tls=H2_TLS, **fields)], logging=LOGGING))


async def checked(harness: Harness) -> None:
    """Wait until the health checks, which share connections with requests, use no stream of them."""
    runtime = harness.service.runtime
    assert runtime is not None
    endpoints = runtime.clusters["east"].endpoints
    await harness.until(lambda: all(endpoint.ready for endpoint in endpoints), "readiness")


async def asked(harness: Harness, upstream: H2Upstream, raw: bytes) -> tuple[Client, PeerStream]:
    """A client whose request has reached the cluster, and its stream there."""
    before = len(upstream.streams)
    client = await harness.asks(raw)
    await harness.until(lambda: len(upstream.streams) > before, "the request")
    return client, upstream.streams[-1]


def answer(stream: PeerStream, body: bytes = b"{}") -> None:
    """Answer as most servers do: one write with the head and the whole body."""
    engine = stream.peer.engine
    engine.send_headers(stream.number, [*JSON, (b"content-length", b"%d" % len(body))])
    engine.send_data(stream.number, body, end_stream=True)
    stream.finished = True
    stream.peer.flush()


def answering(upstream: H2Upstream) -> None:
    """Have every request answered when it is complete."""
    upstream.stream_event = lambda stream, event: answer(stream) if stream.ended and not stream.finished else None


def status(client: Client) -> tuple[int, dict[str, str], dict[str, Any]]:
    code, fields, body = client.answer()
    return code, fields, json.loads(body)


class TestRequests:
    async def test_the_request_as_the_cluster_sees_it(self, harness: Harness) -> None:
        upstream = await one(harness, credentials=model.Credentials(token=model.Secret("lent")))
        _, stream = await asked(harness, upstream, get(b"/api/v1/pods?a=%2F", b"X-Odd: \t1", b"Accept: b"))
        assert stream.fields.pop(b"audit-id")
        assert stream.fields == {
            b":method": b"GET",
            b":scheme": b"https",
            b":path": b"/api/v1/pods?a=%2F",
            b":authority": b"127.0.0.1:%d" % upstream.port,
            b"x-odd": b"1",
            b"accept": b"b",
            b"x-forwarded-for": b"127.0.0.1",
            b"x-forwarded-proto": b"https",
            b"x-forwarded-host": b"k8s.test",
            b"authorization": b"Bearer lent",
        }
        assert stream.ended

    async def test_a_response_that_came_at_once_has_a_length(self, harness: Harness) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get())
        answer(stream)
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert plain(client.received) == OK.replace(b"Content-Type", b"content-type")

    async def test_a_body_both_ways_in_pieces_with_trailers_of_the_response(self, harness: Harness) -> None:
        upstream = await one(harness)
        raw = get(b"/a", b"Transfer-Encoding: chunked", b"TE: trailers", b"Connection: TE", method=b"PUT")
        client, stream = await asked(harness, upstream, raw + b"2\r\nab\r\n")
        assert b"content-length" not in stream.fields
        assert stream.fields[b"te"] == b"trailers"
        client.send(b"1\r\nc\r\n0\r\nX-Sum: 3\r\n\r\n")
        await harness.until(lambda: stream.ended)
        assert (stream.data, stream.trailers) == (b"abc", {})  # some servers would end the connection of all for them
        stream.head(JSON)
        stream.send(b"one")
        await harness.until(lambda: client.received.endswith(b"3\r\none\r\n"))
        stream.send(b"two")
        stream.end([(b"x-end", b"yes")])
        await harness.until(lambda: client.received.endswith(b"3\r\ntwo\r\n0\r\nx-end: yes\r\n\r\n"))

    async def test_trailers_that_are_announced_go_over_http1(self, harness: Harness) -> None:
        upstream = await one(harness)
        await harness.asks(
            get(b"/a", b"Transfer-Encoding: chunked", b"Trailer: X-Sum", method=b"PUT") + b"0\r\nX-Sum: 3\r\n\r\n"
        )
        await harness.until(lambda: upstream.received.endswith(b"0\r\nX-Sum: 3\r\n\r\n"))
        assert not upstream.streams

    @pytest.mark.parametrize(("method", "length"), [(b"POST", b"0"), (b"DELETE", None), (b"PATCH", b"3")])
    async def test_the_length_of_a_body(self, harness: Harness, method: bytes, length: bytes | None) -> None:
        upstream = await one(harness)
        body = b"abc" if length == b"3" else b""
        raw = get(b"/a", *([b"Content-Length: %d" % len(body)] if body else []), method=method)
        _, stream = await asked(harness, upstream, raw + body)
        await harness.until(lambda: stream.ended)
        assert (stream.fields.get(b"content-length"), stream.data) == (length, body)

    async def test_interim_responses_pass(self, harness: Harness) -> None:
        upstream = await one(harness)
        raw = get(b"/a", b"Content-Length: 1", b"Expect: 100-continue", method=b"PUT")
        client, stream = await asked(harness, upstream, raw)
        assert stream.fields[b"expect"] == b"100-continue"
        stream.head([(b":status", b"100")])
        await harness.until(lambda: client.received == b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(b"x")
        await harness.until(lambda: stream.ended)
        answer(stream)
        await harness.until(lambda: client.received.endswith(b"{}"))

    @pytest.mark.parametrize(("method", "code"), [(b"HEAD", b"200"), (b"GET", b"304"), (b"GET", b"204")])
    async def test_a_response_without_a_body(self, harness: Harness, method: bytes, code: bytes) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get(method=method))
        stream.head([(b":status", code), (b"content-length", b"7" if code != b"204" else b"0")])
        stream.end()  # an empty DATA frame
        await harness.until(lambda: client.received.endswith(b"\r\n\r\n"))
        code_seen, fields, body = client.answer()
        assert (b"%d" % code_seen, fields.get("content-length"), body) == (code, "7" if code != b"204" else None, b"")

    @pytest.mark.parametrize(("code", "line"), [(b"201", b"201 Created"), (b"422", b"422 Unprocessable Entity")])
    async def test_an_http1_client_reads_the_usual_reason(self, harness: Harness, code: bytes, line: bytes) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get())
        stream.head([(b":status", code)])
        stream.end()
        await harness.until(lambda: client.received.startswith(b"HTTP/1.1 " + line + b"\r\n"))

    async def test_an_upgrade_goes_over_http1_beside(self, harness: Harness) -> None:
        upstream = await one(harness)
        answering(upstream)
        await answered(harness, get())
        client = await harness.asks(get(EXEC, b"Connection: Upgrade", b"Upgrade: SPDY/3.1"))
        await harness.until(lambda: upstream.connections)
        assert b"Upgrade: SPDY/3.1" in upstream.received
        upstream.last.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n")
        await harness.until(lambda: client.received.endswith(b"\r\n\r\n"))
        client.send(b"in")
        await harness.until(lambda: upstream.received.endswith(b"in"))
        await answered(harness, get())
        assert len(upstream.h2) == 1


async def answered(harness: Harness, raw: bytes) -> Client:
    client = await harness.asks(raw)
    await harness.until(lambda: client.received.endswith(b"{}"), "the answer")
    return client


class TestConnections:
    async def test_all_clients_share_one_connection_that_is_opened_once(self, harness: Harness) -> None:
        upstream = await one(harness)
        answering(upstream)
        clients = [await harness.client() for _ in range(20)]
        for client in clients:
            client.send(get())
        await harness.until(lambda: all(client.received.endswith(b"{}") for client in clients))
        assert len(upstream.h2) == 1
        assert len(upstream.streams) == 20

    async def test_as_many_as_the_limit_of_streams_makes_necessary(self, harness: Harness) -> None:
        upstream = harness.add(H2Upstream(harness.reactor))
        upstream.settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 2}
        await serve(harness, upstream)
        await checked(harness)
        for count in range(1, 8):
            await asked(harness, upstream, get())
            assert len(upstream.h2) == (count + 1) // 2
        assert [len(end.streams) for end in upstream.h2] == [2, 2, 2, 1]

    async def test_beyond_max_connections_requests_wait_in_order(self, harness: Harness) -> None:
        upstream = harness.add(H2Upstream(harness.reactor))
        upstream.settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 1}
        await serve(harness, upstream, connections=model.Connections(max_connections=1))
        await checked(harness)
        _, first = await asked(harness, upstream, get(b"/api/v1/first"))
        for name in (b"/api/v1/second", b"/api/v1/third"):
            await harness.asks(get(name))
            await harness.turns()
        assert len(upstream.streams) == 1
        answer(first)
        await harness.until(lambda: len(upstream.streams) == 2)
        answer(upstream.streams[1])
        await harness.until(lambda: len(upstream.streams) == 3)
        assert [stream.fields[b":path"][8:] for stream in upstream.streams] == [b"first", b"second", b"third"]
        assert len(upstream.h2) == 1

    @pytest.mark.parametrize("chosen", [model.UpstreamProtocol.AUTO, model.UpstreamProtocol.HTTP1])
    async def test_http1_is_spoken_if_configured_or_chosen(
        self, harness: Harness, chosen: model.UpstreamProtocol
    ) -> None:
        upstream = harness.add(H2Upstream(harness.reactor, (b"http/1.1",)))
        await serve(harness, upstream, connections=model.Connections(protocol=chosen))
        upstream.reply = lambda end: end.send(OK) if end.received.endswith(b"\r\n\r\n") else None
        for _ in range(2):
            await answered(harness, get())
        clients = [await harness.asks(get()) for _ in range(2)]
        await harness.until(lambda: all(client.received.endswith(b"{}") for client in clients))
        assert not upstream.h2

    async def test_http2_that_is_not_offered_is_an_error_that_says_what_to_do(self, harness: Harness) -> None:
        upstream = harness.add(H2Upstream(harness.reactor, (b"http/1.1",)))
        await serve(harness, upstream, connections=model.Connections(protocol=model.UpstreamProtocol.HTTP2))
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"\n"))
        code, _, body = status(client)
        assert code == 503
        assert "set connections.protocol to Auto or HTTP1" in body["message"]


class TestRefusals:
    @pytest.mark.parametrize("method", [b"GET", b"POST"])
    async def test_a_refused_stream_is_sent_again_whatever_its_method(self, harness: Harness, method: bytes) -> None:
        upstream = await one(harness)
        body = b"x" * 1000 if method == b"POST" else b""
        raw = get(b"/a", b"Content-Length: %d" % len(body), method=method) + body
        client, stream = await asked(harness, upstream, raw)
        await harness.until(lambda: len(stream.data) == len(body))
        stream.cancel(ErrorCodes.REFUSED_STREAM)
        await harness.until(lambda: len(upstream.streams) == 2 and upstream.streams[1].ended)
        assert upstream.streams[1].data == body
        answer(upstream.streams[1])
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert harness.records[-1].reason == "ok"

    async def test_what_comes_of_the_body_meanwhile_is_sent_too(self, harness: Harness) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get(b"/a", b"Content-Length: 6", method=b"PUT") + b"ab")
        await harness.until(lambda: stream.data == b"ab")
        stream.cancel(ErrorCodes.REFUSED_STREAM)
        client.send(b"cd")
        await harness.until(lambda: len(upstream.streams) == 2)
        client.send(b"ef")
        await harness.until(lambda: upstream.streams[1].ended)
        assert upstream.streams[1].data == b"abcdef"
        answer(upstream.streams[1])
        await harness.until(lambda: client.received.endswith(b"{}"))

    async def test_a_body_that_is_not_kept_any_more_is_not(self, harness: Harness) -> None:
        upstream = await one(harness)
        raw = get(b"/a", b"Content-Length: 100000", method=b"PUT") + b"x" * 70_000
        client, stream = await asked(harness, upstream, raw)
        await harness.until(lambda: len(stream.data) == 70_000)
        stream.cancel(ErrorCodes.REFUSED_STREAM)
        await harness.until(lambda: client.received.endswith(b"\n"))
        code, fields, body = status(client)
        assert (code, fields["retry-after"]) == (503, "1")
        assert 'endpoint a of cluster "east" did not take the request: the stream was refused' in body["message"]
        assert harness.records[-1].reason == "upstream_refused"
        assert len(upstream.streams) == 1

    async def test_a_cluster_that_refuses_everything_is_asked_some_times(self, harness: Harness) -> None:
        upstream = await one(harness)
        upstream.stream_event = lambda stream, event: stream.cancel(ErrorCodes.REFUSED_STREAM)
        client = await harness.asks(get(method=b"POST"))
        await harness.until(lambda: client.received.endswith(b"\n"))
        assert status(client)[0] == 503
        assert len(upstream.streams) == 5

    async def test_another_endpoint_takes_what_one_refuses_twice(self, harness: Harness) -> None:
        bad, good = (harness.add(H2Upstream(harness.reactor)) for _ in range(2))
        await serve(harness, bad, good)
        bad.stream_event = lambda stream, event: stream.cancel(ErrorCodes.REFUSED_STREAM)
        answering(good)
        for _ in range(4):
            await answered(harness, get(method=b"POST"))

    @pytest.mark.parametrize("whole", [True, False])
    async def test_what_an_endpoint_refuses_that_a_reload_removed_goes_whole_to_the_new_one(
        self, harness: Harness, whole: bool
    ) -> None:
        """It begins anew with the configuration in force; what was read of its body comes along."""
        former, new = (harness.add(H2Upstream(harness.reactor)) for _ in range(2))
        answering(new)
        await serve(harness, former)
        fields = b"Transfer-Encoding: chunked"
        body = b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"
        client, stream = await asked(harness, former, get(b"/a", fields, method=b"PUT") + body[: None if whole else 8])
        await harness.until(lambda: stream.ended if whole else stream.data == b"ab")
        await serve(harness, new)
        stream.cancel(ErrorCodes.REFUSED_STREAM)
        if not whole:
            await harness.until(lambda: new.streams)
            client.send(body[8:])
        await harness.until(lambda: client.received.endswith(b"{}"), "the answer")
        assert [each.data for each in new.streams] == [b"abcd"]

    async def test_streams_above_the_last_of_a_goaway_go_elsewhere_and_others_go_on(self, harness: Harness) -> None:
        upstream = await one(harness)
        first, kept = await asked(harness, upstream, get(WATCH))
        kept.head(JSON)
        second, _ = await asked(harness, upstream, get(method=b"POST"))
        upstream.h2[0].goaway(kept.number)
        await harness.until(lambda: len(upstream.h2) == 2 and upstream.h2[1].streams)
        answer(upstream.h2[1].streams[1])
        await harness.until(lambda: second.received.endswith(b"{}"))
        kept.send(b"{}\n")
        await harness.until(lambda: first.received.endswith(b"{}\n\r\n"))
        await asked(harness, upstream, get())
        assert len(upstream.h2[0].streams) == 2
        kept.end()
        await harness.until(lambda: first.received.endswith(b"0\r\n\r\n"))
        await harness.until(lambda: upstream.h2[0].lost is not None, "the end of the connection")

    async def test_what_is_refused_over_http2_goes_over_http1_where_that_is_required(self, harness: Harness) -> None:
        upstream = await one(harness)
        upstream.stream_event = lambda stream, event: stream.cancel(ErrorCodes.HTTP_1_1_REQUIRED)
        upstream.reply = lambda end: end.send(OK) if end.received.endswith(b"x") else None
        client = await harness.asks(get(b"/a", b"Content-Length: 1", method=b"POST") + b"x")
        await harness.until(lambda: client.received.endswith(b"{}"))


class TestEnds:
    async def test_a_client_that_goes_resets_its_stream_alone(self, harness: Harness) -> None:
        upstream = await one(harness)
        first, one_stream = await asked(harness, upstream, get(WATCH))
        second, other = await asked(harness, upstream, get(WATCH))
        first.abort()
        await harness.until(lambda: one_stream.reset == ErrorCodes.CANCEL)
        answer(other)
        await harness.until(lambda: second.received.endswith(b"{}"))
        assert len(upstream.h2) == 1

    async def test_a_watch_between_two_events_ends_cleanly_and_within_one_not(self, harness: Harness) -> None:
        upstream = await one(harness)
        whole, between = await asked(harness, upstream, get(WATCH))
        broken, within = await asked(harness, upstream, get(WATCH))
        for stream, data in ((between, b'{"type":"ADDED"}\n'), (within, b'{"type":')):
            stream.head(JSON)
            stream.send(data)
        await harness.until(lambda: whole.received.endswith(b"\n\r\n") and broken.received.endswith(b":\r\n"))
        upstream.h2[0].abort()
        await harness.until(lambda: whole.received.endswith(b"0\r\n\r\n") and broken.over)
        assert not broken.received.endswith(b"0\r\n\r\n")
        assert sorted(record.reason for record in harness.records) == ["upstream_broken", "upstream_closed_watch"]

    @pytest.mark.parametrize("how", ["reset", "lost", "short", "long"])
    async def test_a_response_that_is_not_complete_is_never_taken_for_it(self, harness: Harness, how: str) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get())
        stream.head([*JSON, (b"content-length", b"10")])
        stream.send(b"12345")
        await harness.until(lambda: client.received.endswith(b"12345"))
        if how == "reset":
            stream.cancel(ErrorCodes.NO_ERROR)
        elif how == "lost":
            stream.peer.abort()
        elif how == "short":
            stream.end()
        else:
            stream.send(b"123456")
        await harness.until(lambda: client.lost is not None or client.ended)
        assert client.received.endswith(b"12345")
        assert harness.records[-1].reason == "upstream_broken"

    async def test_a_reset_behind_a_complete_response_is_no_failure(self, harness: Harness) -> None:
        upstream = await one(harness)
        raw = get(b"/a", b"Content-Length: 10", method=b"PUT") + b"12345"
        client, stream = await asked(harness, upstream, raw)
        engine = stream.peer.engine
        engine.send_headers(stream.number, [*JSON, (b"content-length", b"2")])
        engine.send_data(stream.number, b"{}", end_stream=True)
        engine.reset_stream(stream.number, ErrorCodes.NO_ERROR)
        stream.peer.flush()
        await harness.until(lambda: client.received.endswith(b"{}"))
        answering(upstream)
        await answered(harness, get())
        assert len(upstream.h2) == 1

    async def test_reads_whose_connection_dies_share_a_new_one(self, harness: Harness) -> None:
        upstream = await one(harness)
        answering(upstream)
        await answered(harness, get())
        upstream.stream_event = None
        clients = [(await asked(harness, upstream, get()))[0] for _ in range(5)]
        answering(upstream)
        upstream.h2[0].abort()
        await harness.until(lambda: all(client.received.endswith(b"{}") for client in clients))
        assert len(upstream.h2) == 2

    async def test_a_write_whose_connection_dies_is_not_sent_twice(self, harness: Harness) -> None:
        upstream = await one(harness)
        client, _ = await asked(harness, upstream, get(method=b"POST"))
        upstream.h2[0].abort()
        await harness.until(lambda: client.received.endswith(b"\n"))
        assert status(client)[0] == 502
        assert len(upstream.streams) == 1

    async def test_a_response_that_is_late(self, harness: Harness) -> None:
        upstream = await one(harness, connections=model.Connections(response_timeout=2.0))
        client, stream = await asked(harness, upstream, get())
        await harness.until(lambda: client.received.endswith(b"\n"))
        code, _, body = status(client)
        assert code == 504
        assert "no response within 2 s" in body["message"]
        await harness.until(lambda: stream.reset == ErrorCodes.CANCEL)

    @pytest.mark.parametrize(
        "fields",
        [
            [(b":status", b"200"), (b"connection", b"close")],
            [(b":status", b"200"), (b"X-Upper", b"1")],
            [(b":status", b"200"), (b"content-length", b"x")],
            [(b":status", b"101")],
            [(b"x-status", b"200")],
        ],
    )
    async def test_a_malformed_response_is_a_502(self, harness: Harness, fields: list[tuple[bytes, bytes]]) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get())
        stream.peer.engine.config.validate_outbound_headers = False
        stream.peer.engine.config.normalize_outbound_headers = False
        stream.head(fields)
        await harness.until(lambda: client.received.endswith(b"\n"))
        code, _, body = status(client)
        assert code == 502
        assert "malformed" in body["message"]
        assert harness.records[-1].reason == "upstream_malformed"
        await harness.until(lambda: stream.reset == ErrorCodes.PROTOCOL_ERROR)


class TestHostileClusters:
    async def test_a_flood_ends_its_connection_and_names_the_endpoint(self, harness: Harness) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get(WATCH))
        stream.head(JSON)
        stream.send(b"{}\n")
        await harness.until(lambda: client.received.endswith(b"{}\n\r\n"))
        with captured_logs() as events:
            for _ in range(1100):
                stream.peer.engine.ping(bytes(8))
            stream.peer.flush()
            await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"))
        warned = [told(event) for event in events if event["log_level"] is LogLevel.warn]
        assert len(warned) == 1
        assert warned[0].startswith("level=warn event=upstream_http2_ended ")
        assert " cluster=east endpoint=a cause=" in warned[0]
        assert stream.peer.goaways == [(0, ErrorCodes.ENHANCE_YOUR_CALM)]
        answering(upstream)
        await answered(harness, get())


class TestBackPressure:
    @pytest.mark.slow
    async def test_a_client_that_does_not_read_holds_its_own_stream_alone(self, harness: Harness) -> None:
        upstream = await one(harness)
        slow, stream = await asked(harness, upstream, get(b"/slow"))
        assert slow.transport is not None
        slow.transport.pauseProducing()  # type: ignore[attr-defined]
        stream.head(JSON)
        total = 16 * 1024 * 1024
        stream.send(b"x" * total)
        await harness.turns(100)
        sent = total - sum(map(len, stream._queued))
        assert sent < LARGEST_WINDOW + 6 * 1024 * 1024  # one window, and what the sockets' buffers hold
        quick, other = await asked(harness, upstream, get())
        other.head(JSON)
        other.send(b"y" * 2_000_000)
        other.end()
        await harness.until(lambda: quick.received.endswith(b"\r\n0\r\n\r\n"))
        assert quick.received.count(b"y") == 2_000_000 + len(b"y")  # and content-type
        slow.transport.resumeProducing()  # type: ignore[attr-defined]
        stream.end()
        await harness.until(lambda: slow.received.endswith(b"\r\n0\r\n\r\n"))
        assert slow.received.count(b"x") == total

    async def test_a_cluster_that_does_not_read_holds_the_upload(self, harness: Harness) -> None:
        upstream = await one(harness)
        size = 8 * 1024 * 1024
        client, stream = await asked(harness, upstream, get(b"/a", b"Content-Length: %d" % size, method=b"PUT"))
        stream.reads = False
        client.send(b"z" * size)
        await harness.until(lambda: len(stream.data) == 65535)
        await harness.turns(50)
        assert len(stream.data) == 65535
        answering(upstream)
        await answered(harness, get())
        stream.read_on()
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert len(stream.data) == size

    async def test_windows_grow_while_the_client_keeps_up(self, harness: Harness) -> None:
        upstream = await one(harness)
        client, stream = await asked(harness, upstream, get())
        stream.head(JSON)
        stream.send(b"x" * 4_000_000)
        stream.end()
        await harness.until(lambda: client.received.endswith(b"\r\n0\r\n\r\n"))
        client, stream = await asked(harness, upstream, get())
        assert stream.peer.engine.remote_flow_control_window(stream.number) == 65535
        widest = 0

        def note(of: PeerStream, event: Any) -> None:
            nonlocal widest
            widest = max(widest, of.peer.engine.local_flow_control_window(stream.number))

        upstream.stream_event = note
        stream.head(JSON)
        stream.send(b"x" * 4_000_000)
        await harness.until(lambda: client.received.count(b"x") == 4_000_000)
        assert stream.peer.engine.streams[stream.number].outbound_flow_control_window > 600_000
