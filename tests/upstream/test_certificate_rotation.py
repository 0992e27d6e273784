"""A client certificate that an exec plugin rotates, with the real pool, real TLS and a watch that is running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.http.client_stream import ClientStream
from mcproxy.http.connection_pool import Connect, ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.http.h1.harness import request_to_send
from tests.upstream.fakes import cluster_config
from tests.upstream.https_server import NOT_DONE_YET, HTTPSServer
from tests.upstream.test_exec_credential import V1

CA = trustme.CA()


class Sink:
    """The receiving end of one response."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = False
        self.failed = False

    def response_whole(self, head: Any, body: bytes) -> None:
        self.data += body
        self.ended = True

    def response_data(self, data: bytes) -> None:
        self.data += data

    def response_end(self, trailers: Any) -> None:
        self.ended = True

    def response_failed(self, problem: Exception) -> None:
        self.failed = True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


async def until(reactor: Any, condition: Callable[[], bool]) -> None:
    deadline = reactor.seconds() + 30.0
    while not condition():
        if reactor.seconds() > deadline:
            pytest.fail("it did not come to pass within 30 seconds")
        await deferLater(reactor, 0.01)


async def get(endpoint: Endpoint, path: str) -> Sink:
    sink: Any = Sink()
    stream: ClientStream = endpoint.pool.take() or await endpoint.pool.open()
    stream.send_head(request_to_send(), path.encode(), b"x", (), sink, timeout=10.0)
    received: Sink = sink
    return received


def plugin_gives(directory: Path, name: str) -> None:
    """Have the next run of the plugin print a certificate of this name."""
    issued = CA.issue_cert(f"{name}@example.com", common_name=name)
    chain, key = issued.cert_chain_pems[0].bytes().decode(), issued.private_key_pem.bytes().decode()
    status = {"clientCertificateData": chain, "clientKeyData": key}
    document = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
    (directory / "credential.json").write_text(json.dumps(document))


@pytest.fixture
def server(reactor: Any, nothing_left_open: None) -> Iterator[HTTPSServer]:
    server = HTTPSServer(reactor, CA, "127.0.0.1")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def cluster(reactor: Any, server: HTTPSServer, tmp_path: Path) -> Iterator[Cluster]:
    deadlines = Deadlines(reactor)

    def pool(connect: Connect, settings: model.Connections, protocol: Any, violated: Any) -> ConnectionPool:
        return ConnectionPool(connect, deadlines, max_idle=4, max_connections=0, idle_timeout=30.0)

    endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=server.port)
    plugin = model.ExecPlugin(command="/bin/cat", args=(str(tmp_path / "credential.json"),))
    config = cluster_config(
        endpoint,
        tls=model.ClusterTLS(ca=model.PEMFile("ca", CA.cert_pem.bytes())),
        credentials=model.Credentials(exec=plugin),
        health_check=model.HealthCheck(interval=3600.0),
    )
    plugin_gives(tmp_path, "old")
    cluster = Cluster.build(config, UpstreamContext.of(reactor, pool))
    cluster.start()
    yield cluster
    cluster.stop()


async def test_the_next_request_shows_the_new_certificate_and_the_watch_goes_on(
    reactor: Any, server: HTTPSServer, cluster: Cluster, tmp_path: Path
) -> None:
    watches: list[Any] = []

    def respond(request: Any) -> Any:
        if b"watch" not in request.uri:
            return b"{}"
        watches.append(request)
        request.write(b"one")
        return NOT_DONE_YET

    server.respond = respond
    endpoint = cluster.endpoints[0]
    await cluster.credentials.ready()
    watch = await get(endpoint, "/watch")
    idle = await get(endpoint, "/before")
    await until(reactor, lambda: watch.data == b"one" and idle.ended)

    plugin_gives(tmp_path, "new")
    await cluster.credentials.refresh()
    after = await get(endpoint, "/after")
    await until(reactor, lambda: after.ended)
    watches[0].write(b"two")
    await until(reactor, lambda: watch.data == b"onetwo")
    watches[0].finish()
    await until(reactor, lambda: watch.ended)

    clients = {seen.uri: seen.client for seen in server.seen if seen.uri != "/readyz"}
    assert clients == {"/watch": "old", "/before": "old", "/after": "new"}
    assert not watch.failed
