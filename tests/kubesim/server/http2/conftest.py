"""A simulated cluster that offers HTTP/2, and connections to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tests.simulated_cluster.http2_client import HTTP2Client
from tests.simulated_cluster.one_pod import Simulated, running

T = TypeVar("T")
PATIENCE = 90.0
Connect = Callable[..., Coroutine[Any, Any, HTTP2Client]]


def context(cluster: Simulated, user: str = "admin", *protocols: str) -> ssl.SSLContext:
    """Return a client's TLS context that offers `protocols` (h2 by default)."""
    found = ssl.create_default_context(cafile=cluster.process.ca)
    found.load_cert_chain(cluster.process.user(user).certificate, cluster.process.user(user).key)
    found.set_alpn_protocols(list(protocols) or ["h2"])
    return found


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; it has PATIENCE seconds for what takes milliseconds."""
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


async def eventually(condition: Callable[[], Any]) -> None:
    """Wait until `condition` is true; `run` ends the waiting."""
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture(scope="package")
def shared() -> Iterator[Simulated]:
    with running("--http2") as found:
        yield found


@pytest.fixture
def cluster(shared: Simulated) -> Iterator[Simulated]:
    yield shared
    shared.control.clear_faults()


@pytest.fixture
def connect(cluster: Simulated) -> Connect:
    """Return what opens an HTTP/2 connection, as admin by default."""

    def open_connection(user: str = "admin", *, endpoint: int = 0, **options: Any) -> Coroutine[Any, Any, HTTP2Client]:
        return HTTP2Client.connect(cluster.process.ports[endpoint], context(cluster, user), **options)

    return open_connection
