"""Streams of the simulated cluster: the same exchanges as over HTTP/1.1, flow control, ends."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import ssl
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.kubesim.server.http2.conftest import Connect, context, eventually, run
from tests.simulated_cluster.http2_client import HTTP2Client
from tests.simulated_cluster.one_pod import POD, Simulated, pod
from tests.simulated_cluster.process import SimulatedClusterProcess

NAMESPACE = "/api/v1/namespaces/default"
MAPS = f"{NAMESPACE}/configmaps"
JSON = [("content-type", "application/json")]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
EACH_OTHERS = {"audit-id", "date"}


def config_map(name: str, size: int = 1) -> bytes:
    metadata = {"name": name}
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "x" * size}}
    ).encode()


def negotiated(cluster: Simulated, endpoint: int, tls: ssl.SSLContext) -> str | None:
    with (
        socket.create_connection(("127.0.0.1", cluster.process.ports[endpoint])) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        return connection.selected_alpn_protocol()


@pytest.mark.parametrize(("offered", "chosen"), [("h2", "h2"), ("http/1.1", "http/1.1")])
def test_the_client_chooses_the_version(cluster: Simulated, offered: str, chosen: str) -> None:
    tls = context(cluster, "admin", offered)
    assert negotiated(cluster, 0, tls) == chosen


def test_an_endpoint_can_stop_to_offer_it(cluster: Simulated) -> None:
    tls = context(cluster, "admin", "h2", "http/1.1")
    cluster.control.http2(1, offer=False)
    assert (negotiated(cluster, 0, tls), negotiated(cluster, 1, tls)) == ("h2", "http/1.1")
    cluster.control.http2(1, offer=True)
    assert negotiated(cluster, 1, tls) == "h2"


def test_the_settings_are_those_of_a_kube_apiserver(connect: Connect) -> None:
    async def ask() -> dict[int, int]:
        client = await connect()
        client.close()
        return client.announced[0]

    announced = run(ask())
    assert announced[SettingCodes.MAX_CONCURRENT_STREAMS] == 250
    assert announced[SettingCodes.INITIAL_WINDOW_SIZE] == announced[SettingCodes.MAX_FRAME_SIZE] == 1 << 18


@pytest.mark.parametrize(
    ("method", "path", "headers", "user"),
    [
        ("GET", NAMESPACE, {}, "admin"),
        ("GET", "/api/v1/nodes", {"Accept": TABLE}, "admin"),
        ("GET", "/apis", {"Accept-Encoding": "gzip"}, "admin"),
        ("GET", "/openapi/v2", {"Accept-Encoding": "gzip"}, "admin"),
        ("GET", "/nope", {}, "admin"),
        ("GET", f"{NAMESPACE}/secrets", {}, "alice"),
        ("HEAD", "/metrics", {}, "admin"),
        ("OPTIONS", NAMESPACE, {}, "admin"),
        ("PUT", MAPS, {"Content-Type": "application/json"}, "admin"),
        ("POST", MAPS, {"Content-Type": "text/plain"}, "admin"),
        ("GET", f"{POD}/exec?command=id", {}, "admin"),
    ],
)
def test_a_response_is_that_of_http1(
    cluster: Simulated, connect: Connect, method: str, path: str, headers: dict[str, str], user: str
) -> None:
    body = None if method in ("GET", "HEAD", "OPTIONS") else b"{}"
    over_1 = http.client.HTTPSConnection(
        "127.0.0.1", cluster.process.ports[0], context=context(cluster, user, "http/1.1"), timeout=60
    )
    over_1.request(method, path, body, headers)
    expected = over_1.getresponse()
    content = expected.read()
    over_1.close()

    async def ask() -> tuple[int, list[tuple[str, str]], bytes]:
        client = await connect(user)
        reply = client.request(method, path, headers.items(), body)
        found = await reply.read()
        client.close()
        return reply.status, reply.headers, found

    status, fields, found = run(ask())
    assert (status, found) == (expected.status, content)
    left_out = EACH_OTHERS | {"transfer-encoding", "connection"}
    assert [field for field in fields if field[0] not in EACH_OTHERS] == [
        (name.lower(), value) for name, value in expected.getheaders() if name.lower() not in left_out
    ]


def test_requests_of_a_connection_are_recorded_with_its_certificate(cluster: Simulated, connect: Connect) -> None:
    async def ask() -> None:
        client = await connect("alice")
        replies = [client.request("GET", NAMESPACE, [("x-number", str(number))]) for number in range(3)]
        for reply in replies:
            await reply.read()
        client.close()

    mark = cluster.control.mark()
    run(ask())
    records = cluster.control.audit(mark)
    assert [(record["protocol"], record["stream"]) for record in records] == [("HTTP/2.0", each) for each in (1, 3, 5)]
    assert len({record["connection"] for record in records}) == 1
    assert {record["client_subject"] for record in records} == {"CN=alice,O=dev"}
    assert {record["user"] for record in records} == {"alice"}
    assert [name for name, _ in records[0]["headers"]] == ["host", "x-number"]


def test_connections_and_streams_are_counted(cluster: Simulated, connect: Connect) -> None:
    async def watch() -> list[dict[str, Any]]:
        client = await connect(endpoint=1)
        watches = [client.request("GET", f"{MAPS}?watch=1") for _ in range(4)]
        for reply in watches:
            await reply.begun()
        found = [cluster.control.http2_stats(1), cluster.control.stats()]
        client.reset(watches[0])
        await eventually(lambda: cluster.control.http2_stats(1)["streams"] == [3])
        await eventually(lambda: cluster.control.stats()["watches"] == 3)
        client.close()
        await eventually(lambda: cluster.control.http2_stats(1)["connections"] == 0)
        await eventually(lambda: cluster.control.stats()["watches"] == 0)
        return [*found, cluster.control.http2_stats(1)]

    open_, all_, after = run(watch())
    assert open_["streams"] == [4]
    assert open_["mostStreams"] == 4
    assert all_["http2Connections"] >= 1
    assert after["resetsReceived"] == open_["resetsReceived"] + 1
    assert after["protocolErrors"] == []


@pytest.mark.parametrize("announced", [True, False], ids=["content-length", "no length"])
def test_a_body_larger_than_the_window_arrives(cluster: Simulated, connect: Connect, announced: bool) -> None:
    body = config_map(f"big-{announced}".lower(), 1_000_000)

    async def create() -> tuple[int, bytes]:
        client = await connect()
        if announced:
            reply = client.request("POST", MAPS, JSON, body)
        else:
            reply = client.request("POST", MAPS, JSON, body, end=False)
            await eventually(lambda: not client.unsent(reply))
            client.engine.end_stream(reply.stream)
            client.flush()
        content = await reply.read()
        client.close()
        return reply.status, content

    mark = cluster.control.mark()
    status, content = run(create())
    assert status == 201
    assert json.loads(content)["data"]["k"] == "x" * 1_000_000
    (record,) = cluster.control.audit(mark, method="POST")
    assert record["body_length"] == len(body)
    assert ("transfer-encoding" in dict(record["headers"])) is False


def test_content_waits_until_it_is_read(cluster: Simulated, connect: Connect) -> None:
    """A handler that does not read stops its own stream's client, and nobody else."""
    cluster.control.fault("blackHole", paths=MAPS, methods="POST", count=1)

    async def upload() -> int:
        client = await connect()
        held = client.request("POST", MAPS, JSON, config_map("held", 4_000_000))
        assert (await client.request("GET", NAMESPACE).begun()).status == 200
        await asyncio.sleep(0.1)
        assert (await client.request("GET", NAMESPACE).begun()).status == 200
        unsent = client.unsent(held)
        client.close()
        return unsent

    assert run(upload()) > 3_000_000


def test_a_client_that_reads_one_stream_of_two_gets_it(cluster: Simulated, connect: Connect) -> None:
    cluster.control.create([pod("long", bytes="400000")])
    path = f"{NAMESPACE}/pods/long/log"

    async def download() -> tuple[int, int]:
        client = await connect(settings={SettingCodes.INITIAL_WINDOW_SIZE: 1000}, reads=False)
        slow, fast = client.request("GET", path), client.request("GET", path)
        await slow.begun()
        got = 0
        while data := await fast.received.read(65536):
            got += len(data)
            client.give_window(len(data), fast)
            client.give_window(len(data))
        slow_got = len(await slow.received.read(1 << 20))
        client.close()
        return got, slow_got

    assert run(download()) == (400_000, 1000)


def test_an_answer_before_the_end_of_the_request_ends_it(connect: Connect) -> None:
    async def ask() -> tuple[int, int | None]:
        client = await connect("alice")
        reply = client.request("POST", MAPS, JSON, b"{", end=False)
        content = await reply.read()
        await eventually(lambda: reply.lost)
        assert b"Forbidden" in content
        assert reply.lost is not None
        client.close()
        return reply.status, reply.lost.code

    assert run(ask()) == (403, ErrorCodes.NO_ERROR)


def test_100_continue_is_an_interim_response(connect: Connect) -> None:
    async def ask() -> tuple[list[int], int]:
        client = await connect()
        body = config_map("expected")
        length = [("content-length", str(len(body))), ("expect", "100-continue")]
        reply = client.request("POST", MAPS, [*JSON, *length], end=False)
        await eventually(lambda: reply.interim)
        client.engine.send_data(reply.stream, body, end_stream=True)
        client.flush()
        await reply.read()
        client.close()
        return reply.interim, reply.status

    assert run(ask()) == ([100], 201)


def test_events_come_at_once(connect: Connect) -> None:
    async def watch() -> dict[str, Any]:
        client = await connect()
        reply = client.request("GET", f"{MAPS}?watch=1&fieldSelector=metadata.name%3Dsoon")
        await reply.begun()
        await client.request("POST", MAPS, JSON, config_map("soon")).read()
        line = await reply.received.readline()
        client.close()
        found: dict[str, Any] = json.loads(line)
        return found

    assert run(watch())["object"]["metadata"]["name"] == "soon"


def test_gzip_is_passed_on(cluster: Simulated, connect: Connect) -> None:
    cluster.control.create(
        [json.loads(config_map("zipped", 200_000)) | {"metadata": {"name": "zipped", "namespace": "default"}}]
    )

    async def ask() -> bytes:
        client = await connect()
        reply = client.request("GET", f"{MAPS}/zipped", [("accept-encoding", "gzip")])
        content = await reply.read()
        assert reply.header("content-encoding") == "gzip"
        client.close()
        return content

    assert json.loads(gzip.decompress(run(ask())))["data"]["k"] == "x" * 200_000


def test_a_cluster_that_ends_says_so(cluster: Simulated) -> None:
    async def watch(process: SimulatedClusterProcess) -> HTTP2Client:
        client = await HTTP2Client.connect(process.ports[0], context(Simulated(process)))
        reply = client.request("GET", f"{MAPS}?watch=1")
        await reply.begun()
        process.terminate()
        await client.closed.wait()
        return client

    with SimulatedClusterProcess("east", options=("--empty", "--http2", "--drain-seconds", "0.05")) as process:
        client = run(watch(process))
    assert client.goaways == [(ErrorCodes.NO_ERROR, 1)]
