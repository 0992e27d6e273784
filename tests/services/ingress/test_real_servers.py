"""Servers and clients that are not our own code, behind and before an ingress."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mcproxy.config.model import UpstreamProtocol
from mcproxy.services.ingress.forward_target import AttemptOutcome
from tests.net.peers import in_thread, until
from tests.services.ingress.real_servers import AiohttpPod, NginxPod, run_client
from tests.services.ingress.stand import H2C, Front, Stand


@pytest.fixture
def pod() -> Iterator[AiohttpPod]:
    pod = AiohttpPod()
    yield pod
    pod.stop()


@pytest.fixture
def front(stand: Stand, pod: AiohttpPod) -> Front:
    front = stand.front()
    front.to(pod.port)
    return front


async def test_a_websocket_carries_messages_both_ways_and_its_close_code(front: Front, pod: AiohttpPod) -> None:
    large = b"x" * 2_000_000

    async def client() -> list[Any]:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{front.port}/ws"
            async with session.ws_connect(url, protocols=["chat"], max_msg_size=0) as ws:
                heard = [ws.protocol]
                for word in ("one", "two"):
                    await ws.send_str(word)
                    heard.append((await ws.receive(60)).data)
                await ws.send_bytes(large)
                heard.append((await ws.receive(60)).data)
                await ws.ping(b"there?")
                await ws.close(code=4001)
        return heard

    # aiohttp's server closes at 4 MiB of one message
    assert await in_thread(run_client, client) == ["chat", "heard one", "heard two", large]
    await until(lambda: pod.closed)
    assert pod.closed == [4001]
    await until(lambda: front.asked[0].done)
    assert front.asked[0].outcomes == [AttemptOutcome.ANSWERED]
    assert front.pods[0].in_flight == 0


async def test_a_websocket_that_is_refused_is_a_plain_response(front: Front) -> None:
    async def client() -> int:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"http://127.0.0.1:{front.port}/other")
        return refused.value.status

    assert await in_thread(run_client, client) == 200


async def test_events_arrive_one_by_one(front: Front) -> None:
    async def client() -> list[bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{front.port}/sse") as response,
        ):
            pieces = []
            async for piece in response.content.iter_any():
                pieces.append(piece)
                async with session.post(f"http://127.0.0.1:{front.port}/sse/seen") as confirmed:
                    assert confirmed.status == 200
            return pieces

    pieces = await in_thread(run_client, client)
    assert pieces == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]


async def test_100_continue_comes_from_the_pod_before_the_body(front: Front) -> None:
    def client() -> tuple[bytes, bytes]:
        with socket.create_connection(("127.0.0.1", front.port), 60) as sock:
            sock.sendall(
                b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
            )
            interim = sock.recv(1000)
            sock.sendall(b"body")
            answer = b""
            while data := sock.recv(1000):
                answer += data
        return interim, answer

    interim, answer = await in_thread(client)
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"POST /p 4")


async def test_an_upload_of_some_megabytes(front: Front) -> None:
    async def client() -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"http://127.0.0.1:{front.port}/up?a=b", data=b"x" * 5_000_000) as response,
        ):
            return await response.read()

    assert await in_thread(run_client, client) == b"PUT /up?a=b 5000000"


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[NginxPod]:
    pod = NginxPod(tmp_path)
    yield pod
    pod.stop()


async def _listens(port: int) -> None:
    def accepts() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    await until(accepts)


@pytest.mark.parametrize("version", [UpstreamProtocol.HTTP1, UpstreamProtocol.HTTP2])
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "h2c"])
async def test_nginx_as_a_pod_that_ends_its_connections_after_some_requests(
    stand: Stand, nginx: NginxPod, http2: bool, version: UpstreamProtocol
) -> None:
    front = stand.front()
    port = nginx.http2 if http2 else nginx.http1
    await _listens(port)
    pod = front.to(port, H2C) if http2 else front.to(port)
    client = front.client(version)
    spoken = b"HTTP/2.0" if http2 else b"HTTP/1.1"
    for number in range(30):
        got = await client.ask(b"GET", b"/%d" % number)
        assert (got.status, got.body) == (200, b"GET /%d %b shop.example.com" % (number, spoken))
    got = await client.ask(b"GET", b"/large")
    assert got.body == b"x" * 3_000_000
    together = [await client.begin(b"GET", b"/%d" % number) for number in range(30)]
    assert [(await asking.wait()).status for asking in together] == [200] * 30
    assert pod.in_flight == 0
