"""A change of the number of processes that cannot begin leaves no descriptor open."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mcproxy.config.model import Config, DaemonConfig
from mcproxy.daemon.service_by_workers import ServiceByWorkers, ServiceParts
from mcproxy.net.listening_sockets import HandedOver
from tests.support.clock import Clock


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


def service(*descriptors: int) -> Any:
    async def save() -> None:
        pass

    return SimpleNamespace(save=save, listening=[(f"a:{number}", each) for number, each in enumerate(descriptors)])


async def refused(before: Any) -> int:
    """Change to two workers, which fails; return how many descriptors are open more than before."""

    def make(several: bool, handed_over: HandedOver) -> ServiceParts:
        if several:
            raise OSError("no memory to share")
        return ServiceParts(before, cast(Any, None), lambda: None)

    one = Config(daemon=DaemonConfig(workers=1))
    services = ServiceByWorkers(Clock(), make, one, HandedOver())
    gc.collect()
    gc.disable()  # it would close what was left
    try:
        open_before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError) as caught:
            await services.apply(Config(daemon=DaemonConfig(workers=2)))
        left = len(os.listdir("/proc/self/fd")) - open_before  # while the error, which a log may keep, has the frames
        assert caught.value.__traceback__ is not None
        return left
    finally:
        gc.enable()


async def test_where_the_new_service_cannot_be_made(listening: socket.socket) -> None:
    assert await refused(service(listening.fileno(), listening.fileno())) == 0


async def test_where_a_socket_cannot_be_duplicated(listening: socket.socket) -> None:
    assert await refused(service(listening.fileno(), 1 << 20)) == 0
