"""Fixtures of the tests of the simulated cluster: an event loop, certificates, a small cluster."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubesim.auth.certificates import Authority, server_context
from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects
from kubesim.server import app
from kubesim.server.http2_connection import HTTP2Settings
from kubesim.server.http2_connections import HTTP2Connections
from kubesim.workloads import demo_objects, populate
from tests.kubesim.raw_client import Target

USERS = {"admin": ("system:masters",), "alice": ("dev",), "mcproxy": ("mcproxy",)}


class Lab:
    """Serves simulated clusters in one event loop, and has client contexts for their users."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        self.authority = Authority("lab-ca")
        self.front_proxy_authority = Authority("lab-front-proxy-ca")
        certificate, key = self.authority.server(["127.0.0.1", "localhost"]).write(directory, "server")
        trusted = self.authority.pem + self.front_proxy_authority.pem
        self._server_context = server_context(certificate, key, trusted)
        issued = {user: self.authority.client(user, groups) for user, groups in USERS.items()}
        issued["front-proxy"] = self.front_proxy_authority.client("front-proxy-client")
        files = {user: pair.write(directory, user) for user, pair in issued.items()}
        self.contexts = self._client_contexts(files)
        self.http2_contexts = self._client_contexts(files)
        for context in self.http2_contexts.values():
            context.set_alpn_protocols(["h2"])
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server] = []

    def _client_contexts(self, files: dict[str, tuple[Path, Path]]) -> dict[str, ssl.SSLContext]:
        """Return a context for each user, and for "", who has no certificate."""
        contexts = {user: ssl.create_default_context(cadata=self.authority.pem.decode()) for user in ("", *files)}
        for user, pair in files.items():
            contexts[user].load_cert_chain(*pair)
        return contexts

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def serve(self, cluster: SimulatedCluster, *, http2: bool = False) -> Callable[[str], Target]:
        """Serve a cluster; return a function from user ("" for none) to target, which is asked over HTTP/2 or not."""
        cluster.client_ca_pem = self.authority.pem
        cluster.front_proxy_ca_pem = self.front_proxy_authority.pem
        port = self.run(self._serve(cluster))
        contexts = self.http2_contexts if http2 else self.contexts
        return lambda user: Target(port, contexts[user], http2)

    async def _serve(self, cluster: SimulatedCluster) -> int:
        runner = web.AppRunner(app.build(cluster), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        assert runner.server is not None
        protocol = HTTP2Connections(0, cluster.faults, self._server_context, HTTP2Settings()).accept(runner.server)
        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=self._server_context)
        self._runners.append(runner)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        async def stop() -> None:
            for server in self._servers:
                server.close()
            for runner in self._runners:
                await runner.cleanup()

        self.run(stop())
        self.runner.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


@pytest.fixture
def small_cluster() -> SimulatedCluster:
    """A cluster with its bootstrap objects and one node, n1."""
    cluster = SimulatedCluster("east", rng=random.Random(1))
    populate.bootstrap(cluster)
    nodes = objects.served_resource(cluster, "", "nodes")
    objects.create(cluster, nodes, "", demo_objects.node("n1", 1, "east"))
    return cluster
