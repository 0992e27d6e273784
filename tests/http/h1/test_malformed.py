"""The table of malformed and ambiguous requests, over TLS through a whole proxy; the upstream sees nothing of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mcproxy.config import model
from tests.http.h1.malformed import CASES, SMUGGLED, TOLERATED, Case
from tests.proxy.harness import NAME, OK, Harness, Upstream, always, cluster, config


class Played:
    """One proxy for the whole table."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.upstream: Upstream = harness.upstream()

    async def start(self) -> None:
        credentials = model.Credentials(token=model.Secret("lent"))
        east = cluster(self.upstream.endpoint(), credentials=credentials)
        servers = [
            model.Server(name=name, listeners=("tls",), server_names=(name,), backend=model.ClusterBackend("east"))
            for name in (NAME, "other.test")
        ]
        await self.harness.serve(config([east], servers))


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    from twisted.internet import reactor

    pytest_twisted.blockon(deferLater(reactor, 0))
    played = Played(Harness(reactor))
    pytest_twisted.blockon(Deferred.fromCoroutine(played.start()))
    yield played
    pytest_twisted.blockon(Deferred.fromCoroutine(played.harness.close()))


def status_object(body: bytes, length: str) -> Any:
    assert len(body) == int(length)
    return json.loads(body)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_it_is_refused_with_a_status_and_the_upstream_is_spared(played: Played, case: Case) -> None:
    harness, upstream = played.harness, played.upstream
    upstream.forget()
    client = await harness.asks(case.raw)
    await harness.until(lambda: b"}\n" in client.received, "an answer")
    code, fields, body = client.answer()
    assert code == case.status
    assert fields["content-type"] == "application/json"
    status = status_object(body, fields["content-length"])
    assert (status["kind"], status["apiVersion"], status["code"]) == ("Status", "v1", case.status)
    assert status["message"]
    assert ("connection" in fields) is case.closes
    if case.closes:
        await harness.until(lambda: client.over, "the end of the connection")
        client.close()
    if case.begun:
        await harness.until(lambda: all(each.lost for each in upstream.connections), "the end upstream")
        assert b"0\r\n\r\n" not in upstream.received
    else:
        await harness.turns(2)
        assert upstream.received == b""
    assert SMUGGLED not in upstream.received
    client.abort()


@pytest.mark.parametrize(("raw", "seen"), [row[1:] for row in TOLERATED], ids=[row[0] for row in TOLERATED])
async def test_what_is_odd_but_has_one_meaning_is_served(played: Played, raw: bytes, seen: bytes) -> None:
    harness, upstream = played.harness, played.upstream
    upstream.forget()
    client = await harness.asks(raw)
    await harness.until(lambda: seen in upstream.received, "the request")
    head = upstream.received.lower()
    assert b"\r\nx-forwarded-for: 127.0.0.1\r\n" in head
    assert b"\r\nauthorization: bearer lent\r\n" in head
    assert b"h2c" not in head
    assert b"http2-settings" not in head
    assert b"gzip" not in head
    upstream.last.send(OK)
    await harness.until(lambda: client.received.endswith(b"{}"), "an answer")
    assert client.answer()[0] == 200
    client.abort()


@pytest.mark.parametrize("behind", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\nHost: k8s.test\n\n", b"\x00"])
async def test_a_malformed_request_behind_a_good_one_is_refused_after_its_answer(played: Played, behind: bytes) -> None:
    harness, upstream = played.harness, played.upstream
    upstream.forget()
    upstream.reply = always(OK)
    client = await harness.asks(b"POST / HTTP/1.1\r\nHost: k8s.test\r\nContent-Length: 5\r\n\r\nhello" + behind)
    await harness.until(lambda: client.over, "the end of the connection")
    first, _, second = client.received.partition(b"{}")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 400 ")
    assert upstream.received.count(b" HTTP/1.1\r\n") == 1
    client.close()


def test_the_table_is_as_long_as_it_was_promised() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 100
