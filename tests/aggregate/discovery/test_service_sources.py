"""How long who asks for discovery waits for API servers: never for one that is slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from mcproxy.aggregate.discovery.api_services import ServedGroupVersion
from mcproxy.aggregate.discovery.service_sources import AGE, Services, ServiceSources
from mcproxy.apiservices.availability import FAILED, FALSE, PASSED, TRUE, Availability, Verdict
from mcproxy.apiservices.availability import Registration as APIServiceRegistration
from mcproxy.net.wall_time import WallSeconds
from tests.aggregate.discovery.fake_api_server import FakeAPIServer, aggregated
from tests.support.clock import Clock


def servers_of(number: int) -> dict[str, FakeAPIServer]:
    made = {}
    for index in range(number):
        server = made[f"s{index}"] = FakeAPIServer(f"s{index}")
        server.answers = {"/apis": aggregated(f"g{index}.io/v1", etag='"1"')}
    return made


def services_of(clock: Clock, servers: Mapping[str, FakeAPIServer]) -> tuple[ServiceSources, Services]:
    sources = ServiceSources(clock, lambda: 0.5, maybeDeferred)
    sources.update(servers, {name: [(f"g{name[1:]}.io", "v1")] for name in servers})
    registered = [ServedGroupVersion(f"g{name[1:]}.io", "v1", name, 1000, 100) for name in servers]
    return sources, Services(registered, sources)


def renewed(services: Services) -> list[Any]:
    done: list[Any] = []
    Deferred.fromCoroutine(services.renew()).addBoth(done.append)
    return done


def asked(servers: Mapping[str, FakeAPIServer]) -> int:
    return sum(len(server.asked) for server in servers.values())


def test_what_is_recent_is_not_asked_for() -> None:
    clock, servers = Clock(), servers_of(3)
    _, services = services_of(clock, servers)
    clock.advance(AGE - 0.1)
    assert renewed(services) == [None]
    assert asked(servers) == 3


def test_a_change_is_seen_by_who_asks_two_seconds_later() -> None:
    clock, servers = Clock(), servers_of(3)
    _, services = services_of(clock, servers)
    servers["s1"].answers = {"/apis": aggregated("g1.io/v1", resources=("new",))}
    clock.advance(2)
    assert renewed(services) == [None]
    assert [one.resource for one in services.documents([("g1.io", "v1")])["g1.io", "v1"].resources] == ["new"]


def test_one_that_is_slow_lets_nobody_wait_but_the_first_for_a_moment() -> None:
    clock, servers = Clock(), servers_of(3)
    _, services = services_of(clock, servers)
    servers["s1"].answers = {"/apis": None}
    servers["s2"].answers = {"/apis": aggregated("g2.io/v1", resources=("new",))}
    clock.advance(2)
    first = renewed(services)
    assert not first
    clock.advance(0.25)
    assert first == [None]
    for _ in range(20):
        clock.advance(0.3)
        assert renewed(services) == [None]
    assert services.documents([("g2.io", "v1")])["g2.io", "v1"].fresh
    assert not services.documents([("g1.io", "v1")])["g1.io", "v1"].fresh


def test_two_hundred_begin_in_several_turns_and_are_not_all_waited_for() -> None:
    clock, servers = Clock(), servers_of(200)
    _, services = services_of(clock, servers)
    for server in servers.values():
        server.answers = {"/apis": None}
    clock.advance(2)
    before = asked(servers)
    done = renewed(services)
    assert 0 < asked(servers) - before < 20
    clock.advance(0.041)
    assert done == [None]
    for _ in range(50):
        clock.advance(0.01)
    assert asked(servers) - before == 200


def test_however_many_clients_ask_each_api_server_is_asked_once_in_that_time() -> None:
    clock, servers = Clock(), servers_of(20)
    _, services = services_of(clock, servers)
    clock.advance(2)
    for _ in range(500):
        renewed(services)
        clock.advance(0.01)
    assert asked(servers) <= 20 * (1 + 5 / AGE + 1)


def test_while_nobody_asks_one_poll_in_half_a_minute_is_all() -> None:
    clock, servers = Clock(), servers_of(200)
    services_of(clock, servers)
    for _ in range(60):
        clock.advance(10)
    assert asked(servers) <= 200 * 24


def test_a_reload_keeps_what_stays_and_stops_what_goes() -> None:
    clock, servers = Clock(), servers_of(2)
    sources, services = services_of(clock, servers)
    told: list[int] = []
    services.subscribe(lambda: told.append(1))
    sources.update({"s0": servers["s0"]}, {"s0": [("g0.io", "v1")]})
    assert asked(servers) == 2
    servers["s0"].set_unavailable(WallSeconds(1.0))
    assert told
    assert not services.documents([("g0.io", "v1")])["g0.io", "v1"].fresh
    sources.stop()
    assert not clock.getDelayedCalls()


def test_what_is_not_available_is_stale_and_read_again_when_it_is() -> None:
    clock, servers = Clock(), servers_of(2)
    sources, services = services_of(clock, servers)
    known = Availability(lambda: 0.0)
    sources.follow(known)
    told: list[bool] = []
    services.subscribe(lambda: told.append(services.documents([("g0.io", "v1")])["g0.io", "v1"].fresh))
    registration = APIServiceRegistration("g0.io", "v1", "s0")
    known.take(registration, Verdict(FALSE, FAILED, "no"))
    assert not services.documents([("g0.io", "v1")])["g0.io", "v1"].fresh
    assert services.documents([("g1.io", "v1")])["g1.io", "v1"].fresh
    known.take(registration, Verdict(TRUE, PASSED, "yes"))
    assert told == [False, True]


def test_reads_of_many_that_hang_cost_those_who_come_later_nothing() -> None:
    clock, servers = Clock(), servers_of(200)
    _, services = services_of(clock, servers)
    clock.advance(2)
    for server in servers.values():
        server.answers = {"/apis": None}
    renewed(services)
    clock.pump([0.01] * 100)
    assert asked(servers) == 400
    before = len(clock.getDelayedCalls())
    for _ in range(100):
        assert renewed(services) == [None]  # at once
    assert len(clock.getDelayedCalls()) == before
