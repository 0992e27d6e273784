"""A real redis-server for the tests of a folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dispatch.replicas.virtual import VirtualRedis
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def virtual(redis_server: RedisServer) -> Iterator[VirtualRedis]:
    client = redis_server.client()
    yield VirtualRedis(client)
    client.close()
