"""Tunnels of a hub with workers: what one process has, others use, over the supervisor."""

from __future__ import annotations

import socket
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.daemon.errors import ProcessTimeoutError
from mcproxy.daemon.processes.tunnels import ChannelTunnels, TunnelRelay, process_name
from mcproxy.net.causes import Cause, CauseCode, code_of
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.tunnels import protocol
from tests.daemon.processes.family import FakeChannel, FakeChildren
from tests.support.clock import Clock
from tests.support.logged import captured_logs

ONE, OTHER = "1" * 32, "2" * 32


class FakeHub:
    """What a process tells its `TunnelHub`."""

    def __init__(self) -> None:
        self.remote: list[tuple[bool, str]] = []
        self.dialled: list[tuple[str, str, bytes]] = []
        self.refuses: ConnectFailed | None = None
        self.answers = False
        self.arrived: list[tuple[str, str, bytes]] = []
        self.accepts = True
        self.settled = 0

    def state(self, name: str) -> FakeHub:
        return self

    def set_remote(self, up: bool, cause: str, since: float) -> None:
        self.remote.append((up, cause))

    async def dial_for_other(self, name: str, ticket: str, alpn: bytes) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.dialled.append((name, ticket, alpn))

    async def prove(self, name: str, instance: str) -> bool:
        return self.answers

    def arrive(self, name: str, ticket: str, end: socket.socket) -> bool:
        with end:
            self.arrived.append((name, ticket, end.recv(100)))
        return self.accepts

    def settle(self, name: str) -> None:
        self.settled += 1


class Worker:
    def __init__(self, site: Site, index: int) -> None:
        self.child, self.channel = site.children.add(f"worker-{index}")
        self.child.pid, self.child.answered = 100 + index, True
        self.process = process_name(self.child.name, self.child.pid)
        self.hub = FakeHub()
        self.tunnels = ChannelTunnels(cast(Any, self.channel), cast(Any, site.clock))
        site.children.started(self.child)
        self.tunnels.attach(cast(Any, self.hub))


class Site:
    """A supervisor and three workers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.children = FakeChildren()
        self.relay = TunnelRelay(cast(Any, self.children), cast(Any, self.clock))
        self.workers = [Worker(self, index) for index in range(3)]


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what needs no time; its exception is raised."""
    results: list[Any] = []
    failures: list[Any] = []
    Deferred.fromCoroutine(work).addCallbacks(results.append, failures.append)
    if failures:
        failures[0].raiseException()
    return results[0]


def test_who_has_a_control_connection_is_told_to_all_others_and_to_later_ones() -> None:
    site = Site()
    first, second, _ = site.workers
    with captured_logs() as logged:
        first.tunnels.publish("site-a", [ONE], "")
        second.tunnels.publish("site-a", [ONE], "")
        assert second.hub.remote[-1] == (True, "")
        assert first.hub.remote[-1] == (True, "")
        first.tunnels.publish("site-a", [], "it was cut")
        assert first.hub.remote[-1] == (True, "")
        assert second.hub.remote[-1] == (False, "")
        later = Worker(site, 3)
        assert later.hub.remote == [(True, "")]
        second.tunnels.publish("site-a", [], "it was cut, too")
        assert later.hub.remote[-1] == (False, "it was cut, too")
    events = [each["event"] for each in logged if each.get("tunnel") == "site-a"]
    assert events == ["tunnel_up", "tunnel_down"], "once for all processes"


def test_the_end_of_a_process_is_the_end_of_its_control_connections() -> None:
    site = Site()
    first, second, _ = site.workers
    first.tunnels.publish("site-a", [ONE], "")
    site.children.lost(first.child)
    assert second.hub.remote[-1] == (False, "the process worker-0 has ended")


def test_a_dial_reaches_a_holder_and_brings_its_cause_back() -> None:
    site = Site()
    first, second, third = site.workers
    with pytest.raises(ConnectFailed) as found:
        done(third.tunnels.dial("site-a", "t", b"h2"))
    assert code_of(found.value.cause) is CauseCode.NO_TUNNEL
    first.tunnels.publish("site-a", [ONE], "")
    second.tunnels.publish("site-a", [ONE], "")
    for number in range(4):
        done(third.tunnels.dial("site-a", f"t{number}", b"h2"))
    assert len(first.hub.dialled) == len(second.hub.dialled) == 2, "in turns"
    for each in (first, second):
        each.hub.refuses = ConnectFailed(Cause("no route to host", CauseCode.UNREACHABLE))
    with pytest.raises(ConnectFailed) as found:
        done(third.tunnels.dial("site-a", "t", b"h2"))
    assert str(found.value.cause) == "no route to host"
    assert code_of(found.value.cause) is CauseCode.UNREACHABLE


def test_another_edge_has_to_answer_wherever_it_is_connected() -> None:
    site = Site()
    first, _, third = site.workers
    first.tunnels.publish("site-a", [ONE], "")
    assert third.tunnels.instances("site-a") == [ONE]
    assert done(third.tunnels.prove("site-a", OTHER)) is False
    first.hub.answers = True
    assert done(third.tunnels.prove("site-a", OTHER)) is True
    assert done(first.tunnels.prove("site-a", OTHER)) is False, "it has asked here itself"


def test_the_silence_of_a_process_is_no_answer_about_its_edge() -> None:
    site = Site()
    first, _, third = site.workers
    first.tunnels.publish("site-a", [ONE], "")

    async def silent(name: str, instance: str) -> bool:
        raise ProcessTimeoutError

    first.hub.prove = silent  # type: ignore[method-assign]
    with pytest.raises(ConnectFailed, match="the process worker-0 does not answer"):
        done(third.tunnels.prove("site-a", OTHER))
    site.relay._lost(first.child)
    assert done(third.tunnels.prove("site-a", OTHER)) is False, "its connections have ended with it"


@pytest.mark.parametrize("accepts", [True, False])
def test_a_connection_is_passed_on_to_the_process_of_its_ticket(accepts: bool) -> None:
    site = Site()
    first, second, _ = site.workers
    second.hub.accepts = accepts
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hello")
        ticket = protocol.new_ticket(second.process)
        assert done(first.tunnels.pass_on(second.process, "site-a", ticket, theirs)) is accepts
    assert second.hub.arrived == [("site-a", ticket, b"hello")]


def test_a_ticket_of_a_process_that_has_ended_is_refused() -> None:
    site = Site()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ticket = protocol.new_ticket("worker-9-1")
        assert done(site.workers[0].tunnels.pass_on("worker-9-1", "site-a", ticket, theirs)) is False


def test_a_lost_supervisor_is_a_failed_dial() -> None:
    site = Site()
    channel: FakeChannel = site.workers[0].channel
    channel.lose()
    with pytest.raises(ConnectFailed, match="the supervisor does not answer"):
        done(site.workers[0].tunnels.dial("site-a", "t", b"h2"))


def test_two_edges_that_were_accepted_at_the_same_time_are_settled_later() -> None:
    site = Site()
    first, second, _ = site.workers
    first.tunnels.publish("site-a", [ONE], "")
    second.tunnels.publish("site-a", [OTHER], "")
    assert not second.hub.settled
    site.clock.advance(5)
    assert first.hub.settled
    assert second.hub.settled
