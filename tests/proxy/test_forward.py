"""Forwarding on the wire: what the upstream sees, what the client gets, and what happens when either of them goes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.error import ConnectionLost
from twisted.logger import LogLevel, globalLogPublisher

from mcproxy.config import model
from mcproxy.upstream.credentials import CredentialSource
from tests.proxy.harness import OK, Client, Harness, Upstream, always, cluster, config, get, plain

WATCH = b"/api/v1/pods?watch=true"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: SPDY/3.1")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\nX-Stream: v4\r\n\r\n"
EXEC = b"/api/v1/namespaces/a/pods/b/exec?command=sh"

UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"
UNAUTHORIZED_SLOWLY = b"HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
def warned() -> Iterator[list[dict[str, Any]]]:
    """The warnings about requests that could not be served."""
    found: list[dict[str, Any]] = []

    def observe(event: Any) -> None:
        if event.get("log_namespace") == "mcproxy.proxy.upstream_errors" and event["log_level"] is LogLevel.warn:
            found.append(event)

    globalLogPublisher.addObserver(cast(Any, observe))
    yield found
    globalLogPublisher.removeObserver(cast(Any, observe))


async def one(harness: Harness, **fields: Any) -> Upstream:
    """A proxy in front of one upstream."""
    upstream = harness.upstream()
    path = fields.pop("path", "")
    await harness.serve(config([cluster(upstream.endpoint(path=path), **fields)], logging=LOGGING))
    return upstream


LOGGING = model.Logging(access=model.AccessLogConfig())


async def asked(harness: Harness, upstream: Upstream, raw: bytes, end: bytes = b"\r\n\r\n", **how: Any) -> Client:
    """A client whose request has reached the upstream."""
    before = upstream.received.count(end)
    client = await harness.asks(raw, **how)
    await harness.until(lambda: upstream.received.count(end) > before, "the request")
    return client


async def served(harness: Harness, raw: bytes) -> None:
    client = await harness.asks(raw)
    await harness.until(lambda: client.received.endswith(b"{}"))


def status(client: Client) -> tuple[int, dict[str, str], dict[str, Any]]:
    code, fields, body = client.answer()
    return code, fields, json.loads(body)


class TestPasses:
    async def test_the_request_as_the_upstream_sees_it(self, harness: Harness) -> None:
        upstream = await one(harness, credentials=model.Credentials(token=model.Secret("lent")))
        target = b"/api/v1/namespaces/a/pods?b=%2F&a=&a=c%20d&&x"
        await asked(
            harness, upstream, get(target, b"x-ODD: \t1", b"Accept: b", b"X-Odd: 2", b"Authorization: Bearer own")
        )
        assert plain(upstream.received) == (
            b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % upstream.port + b"x-ODD: \t1\r\nAccept: b\r\n"
            b"X-Odd: 2\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: k8s.test\r\n"
            b"Authorization: Bearer lent\r\n\r\n"
        )

    async def test_the_answer_as_the_client_sees_it(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get())
        upstream.last.send(
            b'HTTP/1.1 200 Fine\r\nAudit-ID: 1\r\nwarning: 299 - "a"\r\n'
            b'Warning: 299 - "b"\r\nContent-Encoding: gzip\r\n'
            b"Connection: X-Hop, keep-alive\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n"
            b"X-Kubernetes-Pf-Flowschema-Uid: 2\r\n"
            b"Content-Length: 3\r\n\r\n\x1f\x8b\x00"
        )
        await harness.until(lambda: client.received.endswith(b"\x1f\x8b\x00"))
        assert client.received == (
            b'HTTP/1.1 200 Fine\r\nAudit-ID: 1\r\nwarning: 299 - "a"\r\n'
            b'Warning: 299 - "b"\r\nContent-Encoding: gzip\r\n'
            b"X-Kubernetes-Pf-Flowschema-Uid: 2\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x00"
        )

    async def test_the_path_of_an_endpoint_goes_before_the_target(self, harness: Harness) -> None:
        upstream = await one(harness, path="/k8s/clusters/c-1")
        await asked(harness, upstream, get(b"/version"))
        assert upstream.received.startswith(b"GET /k8s/clusters/c-1/version HTTP/1.1\r\n")

    async def test_preserve_host(self, harness: Harness) -> None:
        upstream = await one(harness, preserve_host=True)
        await asked(harness, upstream, get())
        assert b"\r\nHost: k8s.test\r\n" in upstream.received

    async def test_passthrough_lends_nothing_and_takes_nothing_away(self, harness: Harness) -> None:
        upstream = await one(
            harness,
            identity=model.UpstreamIdentity.PASSTHROUGH,
            credentials=model.Credentials(token=model.Secret("lent")),
        )
        await asked(
            harness,
            upstream,
            get(b"/version", b"Authorization: Bearer own", b"Impersonate-User: a", b"X-Remote-User: b"),
        )
        assert b"Authorization: Bearer own\r\nImpersonate-User: a\r\n" in upstream.received
        assert b"lent" not in upstream.received
        assert b"X-Remote" not in upstream.received

    async def test_a_body_of_known_length(self, harness: Harness) -> None:
        upstream = await one(harness)
        await asked(harness, upstream, get(b"/a", b"Content-Length: 5", method=b"POST") + b"hello", end=b"hello")
        assert upstream.received.endswith(b"\r\nContent-Length: 5\r\n\r\nhello")

    async def test_an_empty_body_has_content_length_0(self, harness: Harness) -> None:
        upstream = await one(harness)
        await asked(harness, upstream, get(b"/a", method=b"POST"))
        assert b"\r\nContent-Length: 0\r\n" in upstream.received

    async def test_a_chunked_body_with_trailers(self, harness: Harness) -> None:
        upstream = await one(harness)
        raw = get(b"/a", b"Transfer-Encoding: chunked", b"Trailer: T", method=b"PUT")
        raw += b"5;x=y\r\nhello\r\n0\r\nT: u\r\nImpersonate-User: admin\r\n\r\n"
        await asked(harness, upstream, raw, end=b"T: u\r\n\r\n")
        assert upstream.received.endswith(b"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nT: u\r\n\r\n")
        assert upstream.received.count(b"Transfer-Encoding") == 1

    async def test_trailers_of_an_answer_pass_to_who_accepts_them(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(b"/a", b"TE: trailers"))
        assert b"\r\nTE: trailers\r\nConnection: TE\r\n" in upstream.received
        upstream.last.send(CHUNKED + chunk(b"hello") + b"0\r\nT: u\r\n\r\n")
        await harness.until(lambda: client.received.endswith(b"5\r\nhello\r\n0\r\nT: u\r\n\r\n"))

    async def test_100_continue_comes_from_the_upstream(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(
            harness, upstream, get(b"/a", b"Expect: 100-continue", b"Content-Length: 5", method=b"POST")
        )
        assert b"\r\nExpect: 100-continue\r\n" in upstream.received
        assert client.received == b""
        upstream.last.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await harness.until(lambda: client.received == b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(b"hello")
        await harness.until(lambda: upstream.received.endswith(b"hello"))
        upstream.last.send(OK)
        await harness.until(lambda: client.received.endswith(b"{}"))

    async def test_head(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(b"/a", method=b"HEAD"))
        upstream.last.send(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        await harness.until(lambda: client.received)
        assert plain(client.received) == b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
        upstream.reply = always(OK)
        client.send(get())
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert len(upstream.connections) == 1

    async def test_an_http10_client_gets_a_body_that_ends_with_the_connection(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, b"GET /a HTTP/1.0\r\n\r\n")
        assert upstream.received.startswith(b"GET /a HTTP/1.1\r\n")
        upstream.last.send(CHUNKED + chunk(b"hello") + b"0\r\n\r\n")
        await harness.until(lambda: client.ended)
        assert client.received.endswith(b"\r\nConnection: close\r\n\r\nhello")

    async def test_the_prefix_of_an_endpoint_goes_before_paths_only(self, harness: Harness) -> None:
        upstream = await one(harness, path="/k8s")
        await asked(harness, upstream, get(b"*", method=b"OPTIONS"))
        assert upstream.received.startswith(b"OPTIONS * HTTP/1.1\r\n")

    async def test_x_forwarded_uri_only_with_upgrades(self, harness: Harness) -> None:
        upstream = await one(harness)
        await asked(harness, upstream, get(EXEC, b"X-Forwarded-Uri: /spoofed"))
        assert b"X-Forwarded-Uri" not in upstream.received
        await asked(harness, upstream, get(EXEC, *UPGRADE))
        assert (
            b"\r\nX-Forwarded-Uri: " + EXEC + b"\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n" in upstream.received
        )

    async def test_one_request_after_the_other_shares_a_connection(self, harness: Harness) -> None:
        upstream = await one(harness)
        upstream.reply = always(OK)
        client = await harness.client()
        for _ in range(3):
            client.received = b""
            client.send(get())
            await harness.until(lambda: client.received.endswith(b"{}"))
        assert len(upstream.connections) == 1
        records = harness.records
        assert [(record.status, record.reason, record.resource) for record in records] == [(200, "ok", "pods")] * 3


class TestFailures:
    async def test_an_endpoint_that_refuses_connections_is_passed_over(self, harness: Harness) -> None:
        dead, alive = harness.upstream(), harness.upstream()
        alive.reply = always(OK)
        east = cluster(dead.endpoint("dead"), alive.endpoint("alive"))
        await dead.stop()
        await harness.serve(config([east]))
        for _ in range(3):
            await served(harness, get(b"/a", b"Content-Length: 2", method=b"POST") + b"ok")

    async def test_refused_connection_is_503_with_cluster_cause_and_retry_after(self, harness: Harness) -> None:
        upstream = harness.upstream()
        await upstream.stop()
        await harness.serve(config([cluster(upstream.endpoint())], logging=LOGGING))
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"}\n"))
        code, fields, body = status(client)
        assert (code, body["reason"], fields["retry-after"]) == (503, "ServiceUnavailable", "5")
        assert body["details"]["retryAfterSeconds"] == 5
        assert 'cluster "east"' in body["message"]
        assert "refused" in body["message"]
        assert harness.records[-1].reason == "upstream_unreachable"

    async def test_a_get_on_a_kept_connection_that_dies_is_asked_again_on_a_new_one(self, harness: Harness) -> None:
        upstream = await one(harness)
        upstream.reply = always(OK)
        clients = [await harness.client() for _ in range(2)]
        for client in clients:
            client.send(get())
        await harness.until(lambda: all(client.received for client in clients))
        stale = list(upstream.connections)
        upstream.reply = lambda end: end.abort() if end in stale else end.send(OK)
        clients[0].send(get())
        await harness.until(lambda: clients[0].received.count(b"{}") == 2)
        assert len(upstream.connections) == len(stale) + 1

    async def test_a_post_on_a_kept_connection_that_dies_is_502(self, harness: Harness) -> None:
        upstream = await one(harness)
        upstream.reply = always(OK)
        client = await harness.asks(get())
        await harness.until(lambda: client.received)
        client.received = b""
        upstream.reply = lambda end: end.abort()
        client.send(get(b"/a", b"Content-Length: 2", method=b"POST") + b"ok")
        await harness.until(lambda: client.received.endswith(b"}\n"))
        code, _, body = status(client)
        assert (code, body["reason"]) == (502, "BadGateway")
        assert 'endpoint a of cluster "east"' in body["message"]
        assert upstream.received.count(b"POST") == 1

    async def test_a_get_is_asked_of_each_endpoint_once(self, harness: Harness) -> None:
        upstreams = [harness.upstream() for _ in range(4)]
        for upstream in upstreams[:3]:
            upstream.reply = lambda end: end.abort()
        upstreams[3].reply = always(OK)
        made = [upstream.endpoint(name) for upstream, name in zip(upstreams, "abcd", strict=True)]
        await harness.serve(config([cluster(*made)]))
        runtime = harness.service.runtime
        assert runtime is not None
        await harness.until(lambda: all(endpoint.ready for endpoint in runtime.clusters["east"].endpoints), "readiness")
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"}"))
        assert status(client)[0] == 200
        assert [upstream.received.count(b"GET") for upstream in upstreams] == [1, 1, 1, 1]

    async def test_a_get_is_asked_again_only_once(self, harness: Harness) -> None:
        upstream = await one(harness)
        upstream.reply = lambda end: end.abort()
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"}\n"))
        assert status(client)[0] in (502, 503)
        assert upstream.received.count(b"GET") <= 2

    async def test_a_broken_answer_is_502(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get())
        upstream.last.send(b"garbage\r\n\r\n")
        await harness.until(lambda: client.received.endswith(b"}\n"))
        code, _, body = status(client)
        assert (code, body["reason"]) == (502, "BadGateway")
        assert harness.records[-1].reason == "upstream_malformed"

    async def test_a_late_first_byte_is_504(self, harness: Harness) -> None:
        upstream = await one(harness, connections=model.Connections(response_timeout=1.5))
        client = await asked(harness, upstream, get())
        await harness.until(lambda: client.received.endswith(b"}\n"))
        code, _, body = status(client)
        assert (code, body["reason"]) == (504, "Timeout")
        await harness.until(lambda: upstream.last.lost)
        assert harness.records[-1].reason == "upstream_timeout"

    @pytest.mark.parametrize("query", [b"timeout=1500ms", b"a=b&timeout=1500ms"])
    async def test_a_timeout_in_the_query_counts(self, harness: Harness, query: bytes) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(b"/api/v1/pods?" + query))
        await harness.until(lambda: client.received.endswith(b"}\n"))
        assert status(client)[0] == 504

    async def test_a_watch_may_take_its_time(self, harness: Harness) -> None:
        upstream = await one(harness, connections=model.Connections(response_timeout=0.1))
        client = await asked(harness, upstream, get(WATCH))
        await harness.turns(200)
        upstream.last.send(CHUNKED + chunk(b"{}\n") + b"0\r\n\r\n")
        await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"))

    @pytest.mark.parametrize(
        "begun",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
            CHUNKED + chunk(b"hello"),
            CHUNKED + b"10\r\nhello",
        ],
    )
    async def test_an_answer_that_breaks_off_breaks_the_clients_connection(
        self, harness: Harness, begun: bytes
    ) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get())
        upstream.last.send(begun)
        await harness.until(lambda: b"hello" in client.received)
        upstream.last.close()
        await harness.until(lambda: client.lost)
        assert not client.ended
        assert isinstance(client.lost, ConnectionLost)
        assert not client.received.endswith(b"0\r\n\r\n")
        assert harness.records[-1].reason == "upstream_broken"

    async def test_an_early_answer_reaches_a_client_that_is_still_sending(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(b"/a", b"Content-Length: 100000000", method=b"POST"))
        client.send(b"x" * 1000)
        upstream.last.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await harness.until(lambda: client.ended)
        client.send(b"x" * 100_000)
        assert plain(client.received) == b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"
        await harness.until(lambda: upstream.last.over)
        client.close()


class TestWatch:
    EVENT = b'{"type":"ADDED"}\n'
    HEAD = CHUNKED

    async def begun(self, harness: Harness) -> tuple[Upstream, Client]:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(WATCH))
        upstream.last.send(self.HEAD + chunk(self.EVENT))
        await harness.until(lambda: client.received.endswith(chunk(self.EVENT)), "an event at once")
        return upstream, client

    async def test_at_an_events_border_it_ends_cleanly(self, harness: Harness) -> None:
        upstream, client = await self.begun(harness)
        upstream.last.abort()
        await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"))
        assert not client.over
        assert harness.records[-1].reason == "upstream_closed_watch"

    async def test_inside_an_event_it_breaks_off(self, harness: Harness) -> None:
        upstream, client = await self.begun(harness)
        upstream.last.send(chunk(self.EVENT[:5]))
        await harness.until(lambda: client.received.endswith(self.EVENT[:5] + b"\r\n"))
        upstream.last.abort()
        await harness.until(lambda: client.lost)
        assert not client.received.endswith(b"0\r\n\r\n")

    async def test_one_with_a_length_is_never_ended_early(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(WATCH))
        upstream.last.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{}\n")
        await harness.until(lambda: client.received.endswith(b"{}\n"))
        upstream.last.abort()
        await harness.until(lambda: client.lost)


class TestWatchInGzip(TestWatch):
    """As Kubernetes 1.37 sends it to who takes gzip, which are all clients in Go."""

    EVENT = gzip.compress(TestWatch.EVENT)
    HEAD = CHUNKED.replace(b"Transfer-", b"Content-Encoding: gzip\r\nTransfer-")


class TestClientGone:
    @pytest.mark.parametrize("orderly", [True, False])
    async def test_before_the_answer(self, harness: Harness, orderly: bool) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get())
        client.close() if orderly else client.abort()
        await harness.until(lambda: upstream.last.over)
        assert harness.records[-1].reason == "client_closed"

    async def test_during_a_watch(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(WATCH))
        upstream.last.send(CHUNKED + chunk(b"{}\n"))
        await harness.until(lambda: client.received)
        client.abort()
        await harness.until(lambda: upstream.last.over)

    async def test_in_the_middle_of_its_body(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(
            harness, upstream, get(b"/a", b"Content-Length: 10", method=b"POST") + b"hello", end=b"hello"
        )
        client.abort()
        await harness.until(lambda: upstream.last.over)
        assert harness.service.running == 0


class TestUpgrade:
    @pytest.mark.parametrize("protocol", [b"SPDY/3.1", b"websocket"])
    @pytest.mark.parametrize("client_first", [True, False])
    async def test_bytes_and_half_close_pass_both_ways(
        self, harness: Harness, protocol: bytes, client_first: bool
    ) -> None:
        upstream = await one(harness, credentials=model.Credentials(token=model.Secret("lent")))
        client = await asked(harness, upstream, get(EXEC, b"Connection: Upgrade", b"Upgrade: " + protocol))
        assert b"\r\nAuthorization: Bearer lent\r\n" in upstream.received
        upstream.last.send(SWITCH.replace(b"SPDY/3.1", protocol) + b"early")
        await harness.until(lambda: client.received.endswith(b"early"))
        head = client.received.partition(b"\r\n\r\n")[0]
        assert plain(head).startswith(b"HTTP/1.1 101 Switching Protocols\r\nX-Stream: v4\r\nUpgrade: " + protocol)
        client.send(b"ping")
        await harness.until(lambda: upstream.received.endswith(b"ping"))
        first, second = (client, upstream.last) if client_first else (upstream.last, client)
        first.send(b"last words")
        first.finish()
        await harness.until(lambda: second.ended, "the half-close")
        assert second.received.endswith(b"last words")
        assert not first.over
        second.send(b"answer")
        second.finish()
        await harness.until(lambda: first.received.endswith(b"answer") and first.over)
        await harness.until(lambda: harness.service.running == 0)
        record = harness.records[-1]
        assert (record.status, record.upgraded) == (101, True)

    async def test_an_answer_other_than_101_is_a_plain_one_and_the_connection_goes_on(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(EXEC, *UPGRADE))
        upstream.last.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        await harness.until(lambda: client.received.endswith(b"no"))
        upstream.reply = always(OK)
        client.send(get())
        await harness.until(lambda: client.received.endswith(b"{}"))

    async def test_one_side_broken_off_breaks_the_other(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(EXEC, *UPGRADE))
        upstream.last.send(SWITCH)
        await harness.until(lambda: client.received)
        client.abort()
        await harness.until(lambda: upstream.last.lost)
        await harness.until(lambda: harness.service.running == 0)

    async def test_101_that_was_not_requested_is_502(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get())
        upstream.last.send(SWITCH)
        await harness.until(lambda: client.received.endswith(b"}\n"))
        assert status(client)[0] == 502


class TestCredential:
    async def test_a_401_to_a_rotated_token_is_asked_again_once_with_the_new_one(
        self, harness: Harness, tmp_path: Any
    ) -> None:
        token = tmp_path / "token"
        token.write_text("old")
        upstream = await one(harness, credentials=model.Credentials(token_file=str(token)))
        upstream.reply = lambda end: end.send(OK if b"Bearer new" in end.received else UNAUTHORIZED)
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"no"))
        token.write_text("new")
        again = await harness.asks(get())
        await harness.until(lambda: again.received.endswith(b"{}"))
        assert upstream.received.count(b"Bearer new") == 1

    async def test_a_401_is_shown_while_the_credential_that_it_was_for_is_in_use(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        def refused() -> bool:
            (east,) = harness.service.figures["clusters"]
            found: bool = east["credentials"]["refused"]
            return found

        token = tmp_path / "token"
        token.write_text("old")
        upstream = await one(harness, credentials=model.Credentials(token_file=str(token)))
        upstream.reply = lambda end: end.send(OK if b"Bearer new" in end.received else UNAUTHORIZED)
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"no"))
        assert refused()
        token.write_text("new")
        posted = await harness.asks(b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        await harness.until(lambda: posted.received.endswith((b"no", b"{}")))  # a body is not sent again
        assert not refused()

    #: How a cluster may refuse: in one piece, and in pieces.
    REFUSALS = pytest.mark.parametrize("refusal", [UNAUTHORIZED, UNAUTHORIZED_SLOWLY], ids=["whole", "in pieces"])
    OWN = model.Credentials(token=model.Secret("lent"))

    @REFUSALS
    @pytest.mark.parametrize("identity", [model.UpstreamIdentity.IMPERSONATE, model.UpstreamIdentity.REQUEST_HEADER])
    async def test_a_401_where_the_proxy_speaks_for_its_client_is_503_and_one_line(
        self, harness: Harness, warned: list[dict[str, Any]], identity: model.UpstreamIdentity, refusal: bytes
    ) -> None:
        upstream = await one(harness, identity=identity, credentials=self.OWN)
        upstream.reply = lambda end: end.send(refusal)
        client = await harness.asks(get())
        await harness.until(lambda: client.received.endswith(b"}\n"))
        code, _, body = status(client)
        assert (code, body["reason"]) == (503, "ServiceUnavailable")
        assert body["message"] == 'cluster "east" is unavailable: it does not accept the proxy\'s credential'
        await harness.until(lambda: harness.records)
        assert [record.reason for record in harness.records] == ["credential_refused"]
        (east,) = harness.service.figures["clusters"]
        assert east["credentials"]["refused"] is True
        (line,) = warned
        assert (line["cluster"], "credentials" in line["todo"]) == ("east", True), line["todo"]
        assert line["client"] == "127.0.0.1"  # by which such lines are limited

    @REFUSALS
    @pytest.mark.parametrize("below", [b"/pods/b/proxy/login", b"/services/b:80/proxy/"])
    async def test_a_401_of_what_stands_behind_a_cluster_passes(
        self, harness: Harness, warned: list[dict[str, Any]], below: bytes, refusal: bytes
    ) -> None:
        upstream = await one(harness, identity=model.UpstreamIdentity.IMPERSONATE, credentials=self.OWN)
        upstream.reply = lambda end: end.send(refusal)
        client = await harness.asks(get(b"/api/v1/namespaces/a" + below))
        await harness.until(lambda: b"no" in client.received.partition(b"\r\n\r\n")[2])
        assert client.answer()[0] == 401
        assert warned == []
        (east,) = harness.service.figures["clusters"]
        assert east["credentials"]["refused"] is False

    async def test_a_401_of_what_stands_behind_a_cluster_renews_no_credential(
        self, harness: Harness, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tenant's pod could have the exec plugin run for ever, and everybody wait for it."""
        token = tmp_path / "token"
        token.write_text("old")
        upstream = await one(harness, credentials=model.Credentials(token_file=str(token)))
        runtime = harness.service.runtime
        assert runtime is not None
        renewed: list[bytes | None] = []

        class Credentials(CredentialSource):
            certificate = None
            header = b"Bearer old"

            def authorization(self) -> bytes:
                return self.header

            def invalidate(self, rejected: bytes | None = None) -> bool:
                renewed.append(rejected)
                return True

        monkeypatch.setattr(runtime.clusters["east"], "credentials", Credentials())
        upstream.reply = lambda end: end.send(UNAUTHORIZED)
        client = await harness.asks(get(b"/api/v1/namespaces/a/pods/b/proxy/"))
        await harness.until(lambda: client.received.endswith(b"no"))
        assert (upstream.received.count(b"GET "), renewed) == (1, [])

    @REFUSALS
    @pytest.mark.parametrize("identity", [model.UpstreamIdentity.PROXY, model.UpstreamIdentity.PASSTHROUGH])
    async def test_a_401_passes_where_the_proxy_sends_no_user(
        self, harness: Harness, warned: list[dict[str, Any]], identity: model.UpstreamIdentity, refusal: bytes
    ) -> None:
        upstream = await one(harness, identity=identity, credentials=self.OWN)
        upstream.reply = lambda end: end.send(refusal)
        client = await harness.asks(get())
        await harness.until(lambda: b"no" in client.received.partition(b"\r\n\r\n")[2])
        assert client.answer()[0] == 401
        assert warned == []

    async def test_a_401_to_what_is_still_being_sent_is_503_as_well(self, harness: Harness) -> None:
        upstream = await one(harness, identity=model.UpstreamIdentity.IMPERSONATE, credentials=self.OWN)
        client = await asked(
            harness, upstream, get(b"/a", b"Content-Length: 10", method=b"POST") + b"hello", end=b"hello"
        )
        upstream.last.send(UNAUTHORIZED)
        await harness.until(lambda: client.received.endswith(b"}\n"))
        assert status(client)[0] == 503
        client.send(b"world")
        await harness.turns()
        assert b"world" not in upstream.received


class TestPace:
    BIG = 32 * 1024 * 1024
    #: What may be under way: both sockets' buffers on loopback and what the proxy holds.
    SLACK = 16 * 1024 * 1024

    async def test_a_client_that_does_not_read_stops_the_upstream(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get())
        client.transport.pauseProducing()  # type: ignore[union-attr]
        got = counted(client)
        source = Source(self.BIG)
        upstream.last.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self.BIG)
        source.feed(upstream.last)
        await harness.until(lambda: source.stalled())
        assert source.given < self.SLACK
        client.transport.resumeProducing()  # type: ignore[union-attr]
        await harness.until(lambda: got() > self.BIG)

    async def test_an_upstream_that_does_not_read_stops_the_client(self, harness: Harness) -> None:
        upstream = await one(harness)
        client = await asked(harness, upstream, get(b"/a", b"Content-Length: %d" % self.BIG, method=b"POST"))
        upstream.last.transport.pauseProducing()  # type: ignore[union-attr]
        got = counted(upstream.last)
        source = Source(self.BIG)
        source.feed(client)
        await harness.until(lambda: source.stalled())
        assert source.given < self.SLACK
        upstream.last.transport.resumeProducing()  # type: ignore[union-attr]
        await harness.until(lambda: got() >= self.BIG)


def counted(end: Any) -> Callable[[], int]:
    """Let an end count what comes instead of keeping it."""
    got = [0]

    def count(data: bytes) -> None:
        got[0] += len(data)

    end.dataReceived = count
    return lambda: got[0]


class Source:
    """A pull producer of much; it stalls when the connection asks no more."""

    PIECE = bytes(64 * 1024)

    def __init__(self, size: int) -> None:
        self.given = 0
        self._size = size
        self._looks: list[int] = []

    def feed(self, end: Any) -> None:
        self._transport = end.transport
        end.transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        if self.given < self._size:
            self.given += len(self.PIECE)
            self._transport.write(self.PIECE)
        else:
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        pass

    def stalled(self) -> bool:
        """Whether nothing has moved for the last 30 looks."""
        self._looks.append(self.given)
        return len(self._looks) > 30 and self._looks[-30] == self.given
