"""The checks of /readyz: what fails, and what fails the whole."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mcproxy.apiservices.availability import Availability, Registration, Verdict, api_service_checks, failure
from mcproxy.config import model
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.daemon.service_report import checks_of, only_of_api_services
from mcproxy.daemon.status.cache_status import cache_checks
from mcproxy.kube.healthz import Check
from mcproxy.tunnels.dialer import Dialer
from mcproxy.upstream.cluster import Cluster


def listener(name: str, *, accepting: bool = True, serves: model.Serves = model.Serves.API) -> Any:
    socket = SimpleNamespace(accepting=accepting)
    return SimpleNamespace(config=SimpleNamespace(name=name, serves=serves), socket=socket)


class FakeDialer(Dialer):
    """A Dialer that only says whether a hub is connected."""

    connected = False

    def __init__(self, *, connected: bool) -> None:
        self.connected = connected
        self.accepting = True


def dialling(name: str, *, connected: bool) -> Any:
    config = SimpleNamespace(name=name, serves=model.Serves.API)
    return SimpleNamespace(config=config, socket=FakeDialer(connected=connected))


class FakeCluster:
    """A cluster that only says whether its endpoints are ready."""

    unready_cause = Cluster.unready_cause

    def __init__(self, endpoints: Sequence[Any]) -> None:
        self.endpoints = endpoints


def cluster(*endpoints: str) -> Any:
    states = [SimpleNamespace(ready=each == "ready", unchecked=each == "unchecked") for each in endpoints]
    return FakeCluster(states)


def test_all_is_well() -> None:
    found = checks_of(False, [listener("a")], {"east": cluster("ready", "out")})
    assert found == [Check("shutdown", ""), Check("listener/a", ""), Check("cluster/east", "", False)]


def test_a_shutdown_and_a_listener_that_does_not_accept_fail_it() -> None:
    assert checks_of(True, [], {})[0].needed
    assert checks_of(True, [], {})[0].cause
    [_, check] = checks_of(False, [listener("a", accepting=False)], {})
    assert check == Check("listener/a", "it does not accept")


def test_a_listener_that_dials_without_a_hub_fails_it_unless_clients_are_served_elsewhere() -> None:
    away, there = dialling("a", connected=False), dialling("b", connected=True)
    admin = listener("admin", serves=model.Serves.ADMIN)
    assert checks_of(False, [away], {})[1:] == [Check("listener/a", "no hub is connected")]
    assert checks_of(False, [away, admin], {})[1:] == [
        Check("listener/a", "no hub is connected"),
        Check("listener/admin", ""),
    ]
    for other in (there, listener("b")):
        found = checks_of(False, [away, other], {})
        assert found[1:] == [Check("listener/a", "no hub is connected", False), Check("listener/b", "")]
    assert checks_of(True, [away], {})[1:] == [Check("listener/a", "")]  # of a shutdown, another check says it


def test_one_cluster_of_several_may_be_away_but_not_all() -> None:
    east, west = "none of its 2 endpoints is ready", "its endpoints have not been checked yet"
    clusters = {"east": cluster("out", "out"), "west": cluster("unchecked")}
    assert checks_of(False, [], clusters)[1:] == [Check("cluster/east", east), Check("cluster/west", west)]
    clusters["north"] = cluster("ready")
    assert [check.needed for check in checks_of(False, [], clusters)[1:]] == [False, False, False]


def test_core_never_depends_on_an_extension() -> None:
    def server(backend: model.Backend, *services: str) -> model.Server:
        owned = [model.APIService(group="zoo.io", version="v1", cluster=name) for name in services]
        return model.Server(name="web", listeners=(), backend=backend, api_services=tuple(owned))

    servers = [
        server(model.ClusterBackend("east"), "zoo", "west"),
        server(model.AggregateBackendConfig("fleet", ("west",)), "metrics"),
    ]
    optional = only_of_api_services(servers)
    assert optional == {"zoo", "metrics"}
    clusters = {"east": cluster("out"), "zoo": cluster("ready"), "metrics": cluster("out")}
    needed = {check.name: check.needed for check in checks_of(False, [], clusters, optional)}
    assert needed == {"shutdown": True, "cluster/east": True, "cluster/zoo": False, "cluster/metrics": False}


def test_an_api_service_fails_itself_alone_and_names_no_address() -> None:
    known = Availability(lambda: 1.0)
    known.use({"web": [model.APIService(group="zoo.io", version="v1", cluster="zoo")]})
    assert list(api_service_checks(known.all())) == [Check("apiservice/v1.zoo.io", "it has not been probed yet", False)]
    zoo = Registration("zoo.io", "v1", "zoo")
    known.take(zoo, failure("zoo/a", "10.0.0.1:443 refused the connection"))
    assert list(api_service_checks(known.all())) == [Check("apiservice/v1.zoo.io", "its probes fail", False)]
    known.take(zoo, Verdict("True", "Passed", "all checks passed"))
    assert list(api_service_checks(known.all())) == [Check("apiservice/v1.zoo.io", "", False)]


SYNCED = SimpleNamespace(synced=True, unavailable_since=None)
STALE = SimpleNamespace(synced=True, unavailable_since=1.0)
NEVER = SimpleNamespace(synced=False, unavailable_since=None)


@pytest.mark.parametrize(
    ("stores", "undiscovered", "unavailable", "now", "cause", "needed"),
    [
        ([SYNCED], 0, UnavailableMembers.STALE, 5.0, "", False),
        ([SYNCED, NEVER], 0, UnavailableMembers.STALE, 5.0, "1 of 2 caches are not in sync yet", True),
        ([SYNCED, NEVER], 0, UnavailableMembers.STALE, 15.0, "1 of 2 caches are not in sync yet", False),
        ([SYNCED, NEVER], 0, UnavailableMembers.FAIL, 15.0, "1 of 2 caches are not in sync yet", True),
        ([NEVER, NEVER], 0, UnavailableMembers.PARTIAL, 15.0, "2 of 2 caches are not in sync yet", True),
        ([], 2, UnavailableMembers.STALE, 15.0, "what 2 of its clusters have is not known yet", True),
        ([SYNCED], 1, UnavailableMembers.STALE, 5.0, "what 1 of its clusters have is not known yet", True),
        ([SYNCED], 1, UnavailableMembers.STALE, 15.0, "what 1 of its clusters have is not known yet", False),
        ([SYNCED, STALE], 0, UnavailableMembers.STALE, 5.0, "1 of 2 caches are not being watched", False),
        ([SYNCED, STALE], 0, UnavailableMembers.FAIL, 15.0, "1 of 2 caches are not being watched", True),
    ],
)
def test_caches(
    stores: list[Any], undiscovered: int, unavailable: UnavailableMembers, now: float, cause: str, needed: bool
) -> None:
    aggregate: Any = SimpleNamespace(
        stores=stores, undiscovered=range(undiscovered), initial_sync_ends=10.0, unavailable=unavailable
    )
    [check] = cache_checks({"fleet": aggregate}, now)
    assert (check.name, check.cause) == ("aggregate/fleet", cause)
    assert not cause or check.needed == needed
