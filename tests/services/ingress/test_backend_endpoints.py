"""The endpoints of a backend in a cluster: what stays when the table changes, and what goes."""

from __future__ import annotations

import math
from typing import Any

from mcproxy.config.model import BackendProtocol, Via
from mcproxy.services.endpoint_table import EndpointState, EndpointTable, PodEndpoint, PortEndpoints
from mcproxy.services.ingress.backend_endpoints import BackendMember, member_keys
from mcproxy.services.ingress.endpoint_health import MAX_FAILURES
from tests.services.ingress.config import backend
from tests.services.ingress.parts import FakeTarget
from tests.support.clock import Clock


class Targets:
    """Makes fake targets, and notes which are given back."""

    def __init__(self) -> None:
        self.made: list[FakeTarget] = []
        self.released: list[Any] = []
        self.protocols: list[str | None] = []

    def acquire(self, key: Any, pod: PodEndpoint, app_protocol: str | None) -> Any:
        self.made.append(FakeTarget(pod.address))
        self.protocols.append(app_protocol)
        return self.made[-1]

    def release(self, target: Any) -> None:
        self.released.append(target)


class Play:
    def __init__(self, **more: Any) -> None:
        self.table = EndpointTable()
        self.targets = Targets()
        self.clock = Clock()
        self.ejected: list[tuple[str, str]] = []
        (self.key,) = member_keys(backend("web", **more)).values()
        self.member = BackendMember(
            self.key, self.table, self.targets, self.clock, lambda: 0.0, lambda *labels: self.ejected.append(labels)
        )
        self.changes = 0
        self.member.subscribe(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def put(self, *pods: str, terminating: tuple[str, ...] = (), **more: Any) -> None:
        found = [PodEndpoint(address, 80) for address in pods]
        found += [PodEndpoint(address, 80, None, EndpointState.TERMINATING) for address in terminating]
        self.table.set(self.key.key, PortEndpoints(tuple(sorted(found)), known=True, **more))

    @property
    def names(self) -> list[str]:
        return [each.pod.address for each in self.member.endpoints]


def test_an_endpoint_that_stays_keeps_its_health_and_its_connections() -> None:
    play = Play()
    play.put("10.0.0.1", "10.0.0.2")
    one, two = play.member.endpoints
    for _ in range(MAX_FAILURES):
        one.failed("refused")
    play.put("10.0.0.1", "10.0.0.3", terminating=("10.0.0.2",))
    assert play.names == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert play.member.endpoints[:2] == (one, two)
    assert not one.usable
    assert not two.ready
    assert play.targets.released == []
    assert play.ejected == [("demo/web", "east")]


def test_one_that_is_gone_gives_its_connections_back_and_its_timer_ends() -> None:
    play = Play()
    play.put("10.0.0.1", "10.0.0.2")
    one, _ = play.member.endpoints
    for _ in range(MAX_FAILURES):
        one.failed("refused")
    play.put("10.0.0.2")
    assert play.targets.released == [one.target]
    assert not play.clock.getDelayedCalls()
    before = play.changes
    one.failed("refused")  # of a request that runs still
    assert play.changes == before
    assert len(play.ejected) == 1


def test_what_comes_later_is_new_and_what_was_there_first_is_not() -> None:
    play = Play()
    assert play.names == []
    play.clock.advance(5)
    play.put("10.0.0.1")
    play.clock.advance(5)
    play.put("10.0.0.1", "10.0.0.2")
    assert [each.since for each in play.member.endpoints] == [-math.inf, play.clock.seconds()]


def test_changes_of_thousands_of_endpoints_leave_time_for_requests() -> None:
    """What a cluster changes all the time would have each process do nothing else."""
    play = Play()
    busy = 0.0
    acquire = play.targets.acquire

    def slow(*arguments: Any) -> Any:
        nonlocal busy
        play.clock.rightNow += 0.1
        busy += 0.1
        return acquire(*arguments)

    play.targets.acquire = slow  # type: ignore[method-assign,assignment]
    began = play.clock.elapsed
    for number in range(1, 251):
        play.put(f"10.0.0.{number}")
        play.clock.advance(0.05)
    assert busy < 0.12 * (play.clock.elapsed - began)
    play.clock.advance(2)
    assert play.names == ["10.0.0.250"]
    play.put("10.0.1.1")
    play.put("10.0.1.2")
    play.member.stop()
    assert not play.clock.getDelayedCalls()


def test_another_app_protocol_needs_other_connections() -> None:
    play = Play()
    play.put("10.0.0.1")
    before = play.member.endpoints[0]
    play.put("10.0.0.1", app_protocol="kubernetes.io/h2c")
    assert play.member.endpoints[0] is not before
    assert play.targets.released == [before.target]
    assert play.targets.protocols == [None, "kubernetes.io/h2c"]


def test_what_is_stale_stays() -> None:
    play = Play()
    play.put("10.0.0.1")
    play.put("10.0.0.1", stale=True)
    assert play.names == ["10.0.0.1"]
    assert play.member.known.stale


def test_by_way_of_the_api_server_there_is_one_for_all_while_there_are_any() -> None:
    play = Play(via=Via.API_SERVER)
    assert play.names == []
    play.put("10.0.0.1", "10.0.0.2")
    (one,) = play.member.endpoints
    assert one.ready
    play.put(terminating=("10.0.0.2",))
    assert play.member.endpoints == (one,)
    assert not bool(one.ready)
    play.put()
    assert not bool(play.member.endpoints)
    assert play.targets.released == [one.target]


def test_a_member_that_is_stopped_follows_nothing() -> None:
    play = Play()
    play.put("10.0.0.1")
    play.member.stop()
    assert len(play.targets.released) == 1
    play.put("10.0.0.2")
    assert play.names == []


def test_backends_that_differ_in_how_they_choose_alone_share_their_members() -> None:
    one = backend("web", weights=(("east", 3),), retries=0, response_timeout=1.0)
    assert member_keys(one) == member_keys(backend("web"))
    assert member_keys(backend("web", protocol=BackendProtocol.HTTP2)) != member_keys(backend("web"))
