"""Admin listeners of a worker: what they show is asked of the supervisor, over a real channel."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor

from mcproxy.daemon.channel import Channel, ChannelMessage, socket_pair
from mcproxy.daemon.processes.admin_relay import AdminRelay, ChannelAdmin
from mcproxy.kube.healthz import Check
from mcproxy.kube.status import StatusError, retry_after
from tests.proxy.admin.conftest import Source


class Children:
    """The supervisor's children: one worker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def on(self, kind: str, handler: Callable[[Any, ChannelMessage], Any]) -> None:
        child = SimpleNamespace(channel=self._channel)
        self._channel.on(kind, lambda message: handler(child, message))


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    here, there = (Channel(reactor, end) for end in socket_pair())
    yield here, there
    here.close()
    there.close()


@pytest.fixture
def admin(channels: tuple[Channel, Channel], source: Source) -> ChannelAdmin:
    here, there = channels
    AdminRelay(Children(there), source)  # type: ignore[arg-type]
    return ChannelAdmin(here)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_everything_comes_as_the_supervisor_has_it(admin: ChannelAdmin, source: Source) -> None:
    source.checked = [Check("reload", "refused", needed=False), Check("aggregate/fleet", "")]
    source.metrics_text = [b"x" * 3_000_000, "é\n".encode()]
    assert await admin.status() == await source.status()
    assert await admin.requests() == await source.requests()
    assert await admin.config() == await source.config()
    assert await admin.checks() == source.checked
    assert b"".join(await admin.metrics(False)) == b"".join(source.metrics_text)
    assert b"".join(await admin.metrics(True)).endswith(b"# EOF\n")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_no_descriptor_is_left_open(admin: ChannelAdmin, source: Source) -> None:
    await admin.status()
    gc.collect()  # mappings of shared memory, of the tests before this one
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await admin.status()
    source.error = retry_after(503, "no", 1)
    for _ in range(20):
        with pytest.raises(StatusError):
            await admin.status()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_without_its_supervisor_a_worker_is_ready_and_says_so(
    admin: ChannelAdmin, channels: tuple[Channel, Channel]
) -> None:
    channels[1].close()
    assert await admin.checks() == [Check("supervisor", "the supervisor does not answer", needed=False)]
    for ask in (admin.status, admin.requests, admin.config):
        with pytest.raises(StatusError) as caught:
            await ask()
        assert caught.value.code == 503
