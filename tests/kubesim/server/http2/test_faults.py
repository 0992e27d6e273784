"""Faults of HTTP/2 in the simulated cluster."""

from __future__ import annotations

import asyncio

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.kubesim.server.http2.conftest import Connect, eventually, run
from tests.simulated_cluster.http2_client import HTTP2Client, StreamLost
from tests.simulated_cluster.one_pod import Simulated

NAMESPACE = "/api/v1/namespaces/default"
WATCH = f"{NAMESPACE}/configmaps?watch=1"


async def outcome(client: HTTP2Client, path: str = NAMESPACE) -> int | StreamLost:
    """Return the status of a request, or how its stream was lost."""
    reply = client.request("GET", path)
    try:
        await reply.read()
    except StreamLost as error:
        return error
    return reply.status


@pytest.mark.parametrize(
    ("settings", "code"), [({}, ErrorCodes.REFUSED_STREAM), ({"errorCode": 13}, ErrorCodes.HTTP_1_1_REQUIRED)]
)
def test_streams_are_refused(cluster: Simulated, connect: Connect, settings: dict[str, int], code: int) -> None:
    async def ask() -> list[int | StreamLost]:
        client = await connect()
        found = [await outcome(client) for _ in range(3)]
        client.close()
        return found

    cluster.control.fault("refuseStream", count=2, **settings)
    mark, before = cluster.control.mark(), cluster.control.http2_stats()["refused"]
    first, second, third = run(ask())
    assert isinstance(first, StreamLost)
    assert isinstance(second, StreamLost)
    assert (first.code, second.code, third) == (code, code, 200)
    assert len(cluster.control.audit(mark)) == 1, "a refused request reaches no handler"
    assert cluster.control.http2_stats()["refused"] == before + 2


def test_a_response_is_reset_midway(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[int, bytes, int | None, int | StreamLost]:
        client = await connect()
        reply = client.request("GET", NAMESPACE)
        await eventually(lambda: reply.lost)
        assert reply.lost is not None
        after = await outcome(client)
        client.close()
        return reply.status, bytes(reply.received._buffer), reply.lost.code, after  # type: ignore[attr-defined]

    cluster.control.fault("resetStream", bytes=50, errorCode=int(ErrorCodes.ENHANCE_YOUR_CALM), count=1)
    status, content, code, after = run(ask())
    assert (status, len(content), code, after) == (200, 50, ErrorCodes.ENHANCE_YOUR_CALM, 200)


def test_a_watch_is_reset_behind_its_head(cluster: Simulated, connect: Connect) -> None:
    async def watch() -> int | StreamLost:
        client = await connect()
        found = await outcome(client, f"{WATCH}&fieldSelector=metadata.name%3Dnone")
        client.close()
        return found

    cluster.control.fault("resetStream", count=1)
    found = run(watch())
    assert isinstance(found, StreamLost)
    assert found.code == ErrorCodes.INTERNAL_ERROR


@pytest.mark.parametrize("kind", ["resetBeforeHead", "resetMidBody", "resetMidChunk", "longContentLength", "garbage"])
def test_what_breaks_a_connection_of_http1_breaks_one_stream(cluster: Simulated, connect: Connect, kind: str) -> None:
    async def ask() -> tuple[int | StreamLost, int, int | StreamLost]:
        client = await connect()
        watch = await client.request("GET", WATCH).begun()
        broken = await outcome(client)
        found = broken, watch.status, await outcome(client)
        assert watch.lost is None
        client.close()
        return found

    cluster.control.fault(kind, count=1, skip=1)
    broken, watch, after = run(ask())
    assert isinstance(broken, StreamLost)
    assert (broken.code, watch, after) == (ErrorCodes.INTERNAL_ERROR, 200, 200)


def test_goaway_with_the_request_that_is_the_last(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[int | StreamLost, list[tuple[int, int]], bool]:
        client = await connect()
        watch = await client.request("GET", WATCH).begun()
        last = await outcome(client)
        await eventually(lambda: client.goaways)
        assert not client.closed.is_set()
        client.reset(watch)
        await client.closed.wait()
        return last, client.goaways, watch.lost is None or watch.lost.code is None

    cluster.control.fault("goaway", count=1, skip=1)
    last, goaways, _ = run(ask())
    assert (last, goaways) == (200, [(ErrorCodes.NO_ERROR, 3)])


def test_goaway_leaves_a_request_unprocessed(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[HTTP2Client, StreamLost | None]:
        client = await connect()
        first = client.request("GET", NAMESPACE)
        await first.read()
        second, third = client.request("GET", NAMESPACE), client.request("GET", NAMESPACE)
        await client.closed.wait()
        assert third.lost is not None
        return client, second.lost

    cluster.control.fault("goaway", unprocessed=True, count=1, skip=1)
    mark = cluster.control.mark()
    client, lost = run(ask())
    assert client.goaways == [(ErrorCodes.NO_ERROR, 1)]
    assert lost is not None
    assert lost.code is None
    assert len(cluster.control.audit(mark)) == 1


def test_goaway_on_all_connections(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[HTTP2Client, list[StreamLost | None]]:
        client = await connect()
        watches = [await client.request("GET", WATCH).begun() for _ in range(3)]
        cluster.control.goaway(last=3)
        await eventually(lambda: cluster.control.stats()["watches"] == 2)
        await eventually(lambda: client.goaways)
        kept = [each.lost for each in watches]
        client.close()
        return client, kept

    client, kept = run(ask())
    assert client.goaways == [(ErrorCodes.NO_ERROR, 3)]
    assert kept == [None, None, None], "a dropped stream gets no frame"


def test_a_goaway_with_an_error_closes(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> HTTP2Client:
        client = await connect()
        await client.request("GET", WATCH).begun()
        cluster.control.goaway(code=int(ErrorCodes.ENHANCE_YOUR_CALM))
        await client.closed.wait()
        return client

    assert run(ask()).goaways == [(ErrorCodes.ENHANCE_YOUR_CALM, 1)]


def test_a_silent_connection_answers_nothing_until_the_fault_is_removed(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[int, int, int, int]:
        silent, other = await connect(), await connect()
        ident = cluster.control.fault("silentConnection", count=1)
        waiting = silent.request("GET", NAMESPACE)
        await eventually(lambda: not cluster.control.faults())  # it is used up, by this request
        silent.ping()
        assert await outcome(other) == 200
        await asyncio.sleep(0.1)
        before = waiting.status, silent.pongs
        cluster.control.clear_faults(ident)
        await waiting.read()
        await eventually(lambda: silent.pongs)
        found = *before, waiting.status, silent.pongs
        silent.close()
        other.close()
        return found

    assert run(ask()) == (0, 0, 200, 1)


def test_a_hanging_endpoint_answers_no_ping(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[int, int]:
        client = await connect(endpoint=1)
        watch = client.request("GET", WATCH)
        await watch.begun()
        cluster.control.hang_endpoint(1)
        client.ping()
        await asyncio.sleep(0.1)
        before = client.pongs
        cluster.control.resume_endpoint(1)
        await eventually(lambda: client.pongs)
        client.close()
        return before, client.pongs

    assert run(ask()) == (0, 1)


def test_streams_beyond_the_limit_are_refused(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> tuple[dict[int, int], list[int | None]]:
        client = await connect(endpoint=1)
        cluster.control.http2(1, max_concurrent_streams=2)
        await eventually(lambda: len(client.announced) == 2)
        await asyncio.sleep(0.05)  # the acknowledgement arrives
        client.engine.remote_settings.max_concurrent_streams = 100
        client.engine.remote_settings.acknowledge()
        watches = [client.request("GET", WATCH) for _ in range(3)]
        await eventually(lambda: watches[2].lost)
        await watches[0].begun()
        found = [None if each.lost is None else each.lost.code for each in watches]
        client.close()
        return client.announced[-1], found

    before = cluster.control.http2_stats(1)["overLimit"]
    announced, found = run(ask())
    cluster.control.http2(1, max_concurrent_streams=250)
    assert announced == {SettingCodes.MAX_CONCURRENT_STREAMS: 2}
    assert found == [None, None, ErrorCodes.REFUSED_STREAM]
    assert cluster.control.http2_stats(1)["overLimit"] == before + 1


def test_an_upload_goes_on_when_its_window_becomes_smaller(cluster: Simulated, connect: Connect) -> None:
    """It begins before the client knows the settings, and sends as much as is allowed until then."""
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shrunk"}, "data": {"k": "%b"}}'

    async def upload() -> int:
        client = await connect(endpoint=1, wait=False)
        headers = [("content-type", "application/json")]
        reply = client.request("POST", f"{NAMESPACE}/configmaps", headers, body % (b"x" * 200_000))
        await reply.read()
        client.close()
        return reply.status

    cluster.control.http2(1, initial_window=1000)
    try:
        assert run(upload()) == 201
    finally:
        cluster.control.http2(1, initial_window=1 << 18)


def test_uploads_through_a_small_window_arrive(cluster: Simulated, connect: Connect) -> None:
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "small-window"}, "data": {"k": "%b"}}'

    async def upload() -> tuple[int, int]:
        client = await connect(endpoint=1)
        await eventually(lambda: len(client.announced) == 2)
        headers = [("content-type", "application/json")]
        reply = client.request("POST", f"{NAMESPACE}/configmaps", headers, body % (b"x" * 20_000))
        unsent = client.unsent(reply)
        await reply.read()
        client.close()
        return unsent, reply.status

    cluster.control.http2(1, initial_window=1000)
    try:
        assert run(upload()) == (len(body) - 2 + 20_000 - 1000, 201)
    finally:
        cluster.control.http2(1, initial_window=1 << 18)


def test_faults_of_http2_pass_http1_by(cluster: Simulated) -> None:
    cluster.control.fault("refuseStream")
    assert cluster.get(NAMESPACE)[0] == 200
