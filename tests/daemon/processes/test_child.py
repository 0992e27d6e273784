"""A child: what it keeps of a configuration that it cannot prepare, and how it ends when its supervisor has died."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.daemon.channel import Channel, ChannelMessage, socket_pair
from mcproxy.daemon.processes import children
from mcproxy.daemon.processes.child import ChildProcess
from mcproxy.daemon.service import SingleProcessService
from tests.daemon.processes.scripted import config
from tests.support.logged import captured_logs


class FakeService:
    """Prepares what it is given, or fails."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.prepared: list[Any] = []
        self.committed: list[Any] = []
        self.listeners: list[Any] = []
        self.runtime: Any = object()
        self.running = {"requests": 3}
        self.cut = {"tunnels": 2}
        self.ended: list[str] = []
        self.draining: Deferred[None] = Deferred()

    def begin_shutdown(self) -> None:
        self.ended.append("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        self.ended.append(f"drain {timeout:g}")
        await self.draining

    def stop_accepting(self) -> None:
        self.ended.append("stop_accepting")

    async def finish(self) -> None:
        self.ended.append("finish")

    def abort(self) -> None:
        self.ended.append("abort")

    async def prepare(self, config: model.Config) -> Any:
        if self.fails is not None:
            raise self.fails
        self.prepared.append(SimpleNamespace(config=config))
        return self.prepared[-1]

    def commit(self, prepared: Any) -> None:
        self.committed.append(prepared)

    def discard(self, prepared: Any) -> None:
        self.prepared.remove(prepared)


class LogLevels:
    """A log whose settings are kept, in the order in which they came into force."""

    def __init__(self) -> None:
        self.levels: list[str] = []

    def configure(self, logging: model.Logging) -> None:
        self.levels.append(logging.level)


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    ours, theirs = socket_pair()
    channel = Channel(reactor, theirs)
    made = ChildProcess(reactor, channel, cast(Any, LogLevels()), "worker-0")
    made._service = cast(SingleProcessService, FakeService())
    yield made
    made._ending = True  # the loss of the channel is the end of the test
    if made._prepared is not None:
        made._discard(ChannelMessage("discard", {}))
    channel.close()
    ours.close()


def prepare(child: ChildProcess, *, workers: int = 2, level: str = "info") -> tuple[int, Any]:
    """Let it prepare a configuration with a listening socket; return the port, and what comes of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        fds = [children.config_to_memory(config(workers, level=level)), os.dup(listening.fileno())]
        fields = {"addresses": [f"127.0.0.1:{port}"], "workers": workers, "retiring": False}
        return port, child._prepare(ChannelMessage("prepare", fields, fds))


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_sockets_of_a_configuration_wait_for_the_decision(child: ChildProcess) -> None:
    port, preparing = prepare(child)
    await preparing
    assert listens(port)
    assert len(cast(FakeService, child.service).prepared) == 1


@pytest.mark.parametrize("what", ["map", "read", "prepare"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_what_cannot_be_prepared_leaves_no_listening_socket(
    child: ChildProcess, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients would connect to it, and nobody would ever answer."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    port, preparing = prepare(child)
    with monkeypatch.context() as patch:
        if what == "map":
            patch.setattr(mmap, "mmap", fail)
        elif what == "read":
            patch.setattr(pickle, "loads", fail)
        else:
            cast(FakeService, child.service).fails = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        with pytest.raises(OSError, match="Cannot allocate"):
            await preparing
    assert not listens(port)
    cast(FakeService, child.service).fails = None
    port, preparing = prepare(child)
    await preparing
    assert listens(port)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_what_is_decided_is_in_force_with_its_log(child: ChildProcess) -> None:
    service, log = cast(FakeService, child.service), cast(LogLevels, child._observer)
    for level in ("debug", "info"):
        _, preparing = prepare(child, level=level)
        await preparing
        before = list(log.levels)
        child._commit(ChannelMessage("commit", {}))
        assert log.levels == [*before, level]
    assert service.committed == service.prepared


def lose_supervisor(child: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeService, list[bool]]:
    """Let its supervisor die; return its service, and whether it ended, each time at once or not."""
    ends: list[bool] = []
    monkeypatch.setattr(child, "end", lambda *, at_once=False: ends.append(at_once))
    child._channel.close()
    return cast(FakeService, child.service), ends


def test_without_its_supervisor_it_ends_in_order(child: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with captured_logs() as events:
        service, ends = lose_supervisor(child, monkeypatch)
        assert service.ended == ["begin_shutdown", "stop_accepting", "drain 0"]
        assert ends == []
        service.draining.callback(None)
    assert service.ended[3:] == ["finish"]
    assert ends == [False]
    assert [(each["event"], each.get("cutTunnels")) for each in events] == [
        ("supervisor_died", None),
        ("process_stopped", 2),
    ]


def test_the_steps_of_a_stop_that_are_done_are_not_done_again(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    child._stop_accepting()
    service, _ = lose_supervisor(child, monkeypatch)
    service.draining.callback(None)
    assert service.ended == ["stop_accepting", "begin_shutdown", "drain 0", "finish"]


def test_the_keeper_ends_when_no_worker_needs_it(child: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    workers: Deferred[None] = Deferred()
    child._keeper = cast(Any, SimpleNamespace(unlinked=lambda: workers))
    service, ends = lose_supervisor(child, monkeypatch)
    service.draining.callback(None)
    assert "finish" not in service.ended
    workers.callback(None)
    assert service.ended[-1] == "finish"
    assert ends == [False]


def test_a_signal_or_a_failure_ends_it_at_once(child: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    service, ends = lose_supervisor(child, monkeypatch)
    child.terminate()
    assert ends == [True]
    service.draining.errback(ValueError("a bug"))
    assert ends == [True, True]


@pytest.mark.parametrize("what", ["finishing", "not started"])
def test_one_that_ends_already_or_has_not_begun_does_not_drain(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "finishing":
        child._finishing = True
    else:
        cast(FakeService, child.service).runtime = None
    service, ends = lose_supervisor(child, monkeypatch)
    assert service.ended == []
    assert ends == [True] * (what == "not started")
