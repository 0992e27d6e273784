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

from mcproxy.demo.auth.certificates import Authority, server_context
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.fixtures import bootstrap, demo_objects
from mcproxy.demo.registry import objects
from mcproxy.demo.server import app
from tests.demo.raw_client import Target

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
        self.contexts = {"": self._client_context()}
        for user, pair in issued.items():
            self.contexts[user] = self._client_context()
            self.contexts[user].load_cert_chain(*pair.write(directory, user))
        self._runners: list[web.AppRunner] = []

    def _client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.pem.decode())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def serve(self, cluster: SimulatedCluster) -> Callable[[str], Target]:
        """Serve a cluster; return a function from user ("" for none) to target."""
        cluster.client_ca_pem = self.authority.pem
        cluster.front_proxy_ca_pem = self.front_proxy_authority.pem
        port = self.run(self._serve(cluster))
        return lambda user: Target(port, self.contexts[user])

    async def _serve(self, cluster: SimulatedCluster) -> int:
        runner = web.AppRunner(app.build(cluster), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._server_context)
        await site.start()
        self._runners.append(runner)
        port: int = runner.addresses[0][1]
        return port

    def close(self) -> None:
        async def stop() -> None:
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
    bootstrap.bootstrap(cluster)
    nodes = objects.served_resource(cluster, "", "nodes")
    objects.create(cluster, nodes, "", demo_objects.node("n1", 1, "east"))
    return cluster
