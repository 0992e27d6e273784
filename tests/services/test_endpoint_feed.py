"""The table of endpoints follows the caches: one Service at a time, and always as if all were worked out anew."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mcproxy.services import endpoint_feed
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.endpoint_feed import EndpointFeed
from mcproxy.services.endpoint_slices import AllowedAddresses, Slice, read_service, read_slice
from mcproxy.services.endpoint_table import (
    UNKNOWN,
    BackendKey,
    EndpointTable,
    PodEndpoint,
    PortEndpoints,
    port_endpoints,
)
from mcproxy.services.service_caches import ServiceCaches, object_json
from tests.services.fake_members import FakeMembers
from tests.services.objects import endpoint, service_of, slice_of
from tests.support.clock import Clock
from tests.support.logged import captured_logs

BOTH = {FollowedKind.SLICES: frozenset({"demo"}), FollowedKind.SERVICES: frozenset({"demo"})}
WEB = BackendKey("east", "demo", "web", 80)


class Site:
    def __init__(self, *keys: BackendKey, clusters: tuple[str, ...] = ("east",)) -> None:
        self.clock = Clock()
        self.members = FakeMembers(self.clock, *clusters)
        self.caches = ServiceCaches(self.members, cast(Any, self.clock))
        self.table = EndpointTable()
        self.feed = EndpointFeed(self.caches, self.table, cast(Any, self.clock))
        self.caches.update(dict.fromkeys(clusters, BOTH))
        self.feed.update(keys or (WEB,))
        self.settle()

    def settle(self) -> None:
        for _ in range(4):
            self.clock.advance(0)

    def synced(self, *addresses: str) -> Site:
        self.members.serve()
        for cluster in self.members.members:
            self.members.list(cluster, FollowedKind.SERVICES, service_of())
            self.members.list(cluster, FollowedKind.SLICES, slice_of("web", [endpoint(each) for each in addresses]))
        self.settle()
        return self

    @property
    def value(self) -> PortEndpoints:
        return self.table.get(WEB)

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.value.endpoints]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets each slice which is read from now on."""
    read: list[bytes] = []

    def counted(data: bytes) -> Slice:
        read.append(data)
        return read_slice(data)

    monkeypatch.setattr(endpoint_feed, "read_slice", counted)
    return read


def test_endpoints_are_known_when_slices_and_services_are() -> None:
    site = Site()
    assert site.value == PortEndpoints(problem="endpointslices.discovery.k8s.io of cluster east are not known yet")
    site.members.serve()
    site.members.list("east", FollowedKind.SLICES, slice_of("web", [endpoint("10.0.0.1")]))
    site.settle()
    assert not site.value.known
    site.members.list("east", FollowedKind.SERVICES, service_of())
    site.settle()
    assert site.value == PortEndpoints((PodEndpoint("10.0.0.1", 8080),), known=True)


def test_the_last_known_endpoints_stay_while_the_cluster_is_away() -> None:
    site = Site().synced("10.0.0.1")
    site.members.store("east", FollowedKind.SLICES).unavailable("it is down")
    site.settle()
    assert (site.value.known, site.value.stale, site.addresses) == (True, True, ["10.0.0.1"])
    site.members.store("east", FollowedKind.SLICES).put_back()
    site.settle()
    assert (site.value.known, site.value.stale, site.addresses) == (True, True, ["10.0.0.1"])
    site.members.list("east", FollowedKind.SLICES, slice_of("web", [endpoint("10.0.0.2")]))
    site.settle()
    assert (site.value.known, site.value.stale, site.addresses) == (True, False, ["10.0.0.2"])


def test_another_cluster_of_that_name_has_not_the_endpoints_of_the_first() -> None:
    site = Site().synced("10.0.0.1")
    site.members.store("east", FollowedKind.SLICES).clear()
    site.settle()
    assert not site.value.known
    assert not site.value.endpoints


def test_a_cluster_without_endpoint_slices() -> None:
    site = Site()
    site.members.serve(kinds=(FollowedKind.SERVICES,))
    site.settle()
    assert site.value == PortEndpoints(problem="cluster east does not serve endpointslices.discovery.k8s.io")


def test_one_change_works_out_one_service(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [BackendKey("east", "demo", f"web-{number}", 80) for number in range(50)]
    site = Site(*keys)
    site.members.serve()
    site.members.list("east", FollowedKind.SERVICES, *(service_of(key.service) for key in keys))
    site.members.list(
        "east", FollowedKind.SLICES, *(slice_of(key.service, [endpoint("10.0.0.1")], name=key.service) for key in keys)
    )
    site.settle()
    read = count_reads(monkeypatch)
    site.members.put("east", FollowedKind.SLICES, slice_of("web-7", [endpoint("10.0.0.2")], name="web-7"))
    site.settle()
    assert len(read) == 1
    assert site.table.get(keys[7]).endpoints[0].address == "10.0.0.2"


def test_slices_that_did_not_change_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site().synced("10.0.0.1")
    for number in range(2, 20):
        site.members.put(
            "east", FollowedKind.SLICES, slice_of("web", [endpoint(f"10.0.0.{number}")], name=f"s-{number}")
        )
    site.settle()
    read = count_reads(monkeypatch)
    site.members.put("east", FollowedKind.SLICES, slice_of("web", [endpoint("10.0.1.5")], name="s-5"))
    site.settle()
    assert len(read) == 1
    assert "10.0.1.5" in site.addresses
    assert "10.0.0.5" not in site.addresses


def test_a_reload_or_an_outage_works_out_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site().synced("10.0.0.1")
    read = count_reads(monkeypatch)
    site.feed.update((WEB,))
    site.settle()
    site.members.store("east", FollowedKind.SLICES).unavailable("it is down")
    site.settle()
    assert site.value.stale
    site.members.store("east", FollowedKind.SLICES).available()
    site.settle()
    assert not bool(site.value.stale)
    assert not read


def test_a_slice_that_cannot_be_read_is_left_out_and_reported() -> None:
    site = Site().synced("10.0.0.1")
    site.members.put("east", FollowedKind.SLICES, {**slice_of("web", [], name="bad"), "endpoints": 5})
    site.settle()
    assert site.addresses == ["10.0.0.1"]
    assert site.value.problem == "service demo/web of cluster east: 1 of its EndpointSlices cannot be used"


def test_too_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_feed, "MAX_SLICES", 2)
    site = Site().synced("10.0.0.1")
    for number in range(2, 5):
        site.members.put(
            "east", FollowedKind.SLICES, slice_of("web", [endpoint(f"10.0.0.{number}")], name=f"s{number}")
        )
    site.settle()
    assert len(site.addresses) == 2
    assert "2 of its EndpointSlices cannot be used" in site.value.problem


def test_too_many_endpoints_of_one_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of its slices is not even read, and what is left out stays left out when something else changes."""
    monkeypatch.setattr(endpoint_feed, "MAX_READ", 3)
    site = Site().synced("10.0.0.1")
    for name in ("t", "u", "v"):
        found = [endpoint(f"10.0.{ord(name)}.{number}") for number in (1, 2)]
        site.members.put("east", FollowedKind.SLICES, slice_of("web", found, name=name))
    site.settle()
    assert site.addresses == ["10.0.0.1", "10.0.116.1", "10.0.116.2"]
    assert "2 of its EndpointSlices cannot be used" in site.value.problem
    read = count_reads(monkeypatch)
    site.members.put("east", FollowedKind.SLICES, slice_of("web", [endpoint("10.0.0.2")]))
    site.settle()
    assert site.addresses == ["10.0.0.2", "10.0.116.1", "10.0.116.2"]
    assert len(read) == 2


def test_too_many_endpoints_of_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_feed, "MAX_CLUSTER_ENDPOINTS", 3)
    api = WEB._replace(service="api")
    site = Site(WEB, api).synced("10.0.0.1", "10.0.0.2")
    site.members.put("east", FollowedKind.SERVICES, service_of("api"))
    site.members.put(
        "east", FollowedKind.SLICES, slice_of("api", [endpoint(f"10.0.1.{n}") for n in (1, 2, 3)], name="api")
    )
    site.settle()
    assert (len(site.addresses), len(site.table.get(api).endpoints)) == (2, 1)
    assert site.table.get(api).problem == "the backends in cluster east have more than 3 endpoints"
    site.feed.update((api,))
    site.members.put(
        "east", FollowedKind.SLICES, slice_of("api", [endpoint(f"10.0.1.{n}") for n in (1, 2)], name="api")
    )
    site.settle()
    assert (len(site.table.get(api).endpoints), site.table.get(api).problem) == (2, "")


def test_what_takes_long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that changes a great Service all the time takes a tenth of the time at most."""
    site = Site().synced("10.0.0.1")
    looked = 0

    def slow(*arguments: Any) -> PortEndpoints:
        nonlocal looked
        looked += 1
        site.clock.rightNow += 0.01
        return port_endpoints(*arguments)

    monkeypatch.setattr(endpoint_feed, "port_endpoints", slow)
    began = site.clock.elapsed
    for number in range(1, 200):
        site.members.put("east", FollowedKind.SLICES, slice_of("web", [endpoint(f"10.0.0.{number}")]))
        site.clock.advance(0.005)
        site.clock.advance(0)
    assert looked * 0.01 < 0.12 * (site.clock.elapsed - began)
    site.clock.advance(2)
    site.settle()
    assert site.addresses == ["10.0.0.199"]


@pytest.mark.slow
def test_many_services_of_a_cluster_that_take_long_leave_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [WEB._replace(service=f"s{number}") for number in range(30)]
    site = Site(WEB, *keys)
    site.synced("10.0.0.1")
    busy = 0.0

    def slow(*arguments: Any) -> PortEndpoints:
        nonlocal busy
        busy += 0.1
        site.clock.rightNow += 0.1
        return port_endpoints(*arguments)

    monkeypatch.setattr(endpoint_feed, "port_endpoints", slow)
    began = site.clock.elapsed
    while site.clock.elapsed < began + 60:
        for key in keys:
            site.members.put("east", FollowedKind.SERVICES, service_of(key.service))
        site.clock.advance(0.01)
        site.clock.advance(0)
    assert 2 < busy < 0.25 * (site.clock.elapsed - began)


def test_a_cluster_that_rests_has_no_other_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile cluster would delay all endpoints of others by seconds, all the time."""
    west = WEB._replace(cluster="west")
    site = Site(WEB, west, clusters=("east", "west")).synced("10.0.0.1")

    def slow(key: BackendKey, *arguments: Any) -> PortEndpoints:
        site.clock.rightNow += 1.0 if key == WEB else 0.0
        return port_endpoints(key, *arguments)

    monkeypatch.setattr(endpoint_feed, "port_endpoints", slow)
    for number in (2, 3):
        site.members.put("east", FollowedKind.SLICES, slice_of("web", [endpoint(f"10.0.0.{number}")]))
        site.settle()
    site.members.put("west", FollowedKind.SLICES, slice_of("web", [endpoint("10.9.9.9")]))
    site.settle()
    assert [each.address for each in site.table.get(west).endpoints] == ["10.9.9.9"]
    assert site.addresses == ["10.0.0.2"]
    site.clock.advance(2)
    assert site.addresses == ["10.0.0.3"]


def test_a_reload_keeps_the_values_of_what_stays() -> None:
    site = Site().synced("10.0.0.1")
    told: list[BackendKey] = []
    site.table.subscribe_all(told.append)
    other = WEB._replace(port="http")
    site.feed.update((WEB, other))
    site.settle()
    assert told == [other]
    site.feed.update((other,))
    site.settle()
    assert site.table.get(WEB) is UNKNOWN
    site.feed.stop()


CLUSTERS = ("east", "west")
NAMES = ("web", "api")
KEYS = (
    *(BackendKey(cluster, "demo", name, port) for cluster in CLUSTERS for name in NAMES for port in (80, "grpc")),
    BackendKey("east", "demo", "web", 80, (ip_network("10.0.0.0/30"),)),
)
cluster_names = st.sampled_from(CLUSTERS)
kinds = st.sampled_from((FollowedKind.SLICES, FollowedKind.SERVICES))
services = st.builds(
    lambda name, headless, both: service_of(
        name,
        ports=[{"name": "http", "port": 80}, *([{"name": "grpc", "port": 90}] if both else [])],
        **({"clusterIP": "None"} if headless else {}),
    ),
    st.sampled_from(NAMES),
    st.booleans(),
    st.booleans(),
)
slices = st.builds(
    lambda service, name, numbers, ready, port: slice_of(
        service, [endpoint(f"10.0.0.{number}", ready=ready) for number in numbers], name=name, ports=[port]
    ),
    st.sampled_from((*NAMES, "other")),
    st.sampled_from(("a", "b", "c")),
    st.lists(st.integers(1, 6), max_size=3),
    st.booleans(),
    st.sampled_from(({"name": "http", "port": 8080}, {"name": "grpc", "port": 9090})),
)


class Incremental(RuleBasedStateMachine):
    """Whatever clusters do: the table is what their stores say, worked out at once, or what they said last."""

    @initialize()
    def begin(self) -> None:
        self.site = Site(*KEYS, clusters=CLUSTERS)
        self.site.members.serve()
        self.last: dict[BackendKey, PortEndpoints] = {}

    @rule(cluster=cluster_names, found=st.lists(services, max_size=2, unique_by=lambda each: each["metadata"]["name"]))
    def list_services(self, cluster: str, found: list[Any]) -> None:
        self.site.members.list(cluster, FollowedKind.SERVICES, *found)

    @rule(cluster=cluster_names, found=st.lists(slices, max_size=3, unique_by=lambda each: each["metadata"]["name"]))
    def list_slices(self, cluster: str, found: list[Any]) -> None:
        self.site.members.list(cluster, FollowedKind.SLICES, *found)

    @rule(cluster=cluster_names, found=slices)
    def put_slice(self, cluster: str, found: Any) -> None:
        if self.site.members.store(cluster, FollowedKind.SLICES).synced:
            self.site.members.put(cluster, FollowedKind.SLICES, found)

    @rule(cluster=cluster_names, found=services)
    def put_service(self, cluster: str, found: Any) -> None:
        if self.site.members.store(cluster, FollowedKind.SERVICES).synced:
            self.site.members.put(cluster, FollowedKind.SERVICES, found)

    @rule(cluster=cluster_names, kind=kinds, name=st.sampled_from((*NAMES, "a", "b", "c")))
    def delete(self, cluster: str, kind: FollowedKind, name: str) -> None:
        if self.site.members.store(cluster, kind).synced:
            self.site.members.delete(cluster, kind, name)

    @rule(cluster=cluster_names, kind=kinds)
    def lose(self, cluster: str, kind: FollowedKind) -> None:
        self.site.members.store(cluster, kind).unavailable("it is down")

    @rule(cluster=cluster_names, kind=kinds)
    def come_back(self, cluster: str, kind: FollowedKind) -> None:
        self.site.members.store(cluster, kind).available()

    @rule(cluster=cluster_names, kind=kinds)
    def replace(self, cluster: str, kind: FollowedKind) -> None:
        self.site.members.store(cluster, kind).clear()

    @rule(cluster=cluster_names, kind=kinds)
    def put_back(self, cluster: str, kind: FollowedKind) -> None:
        if self.site.members.store(cluster, kind).synced:
            self.site.members.store(cluster, kind).put_back()

    @rule()
    def settle(self) -> None:
        self.site.settle()

    @invariant()
    def equals_the_whole(self) -> None:
        if not hasattr(self, "site"):
            return
        self.site.settle()
        for key in KEYS:
            value = self.site.table.get(key)
            stores = [
                self.site.members.store(key.cluster, kind) for kind in (FollowedKind.SLICES, FollowedKind.SERVICES)
            ]
            if not all(store.synced for store in stores):
                if any(not store.synced and not store.older and store.generation for store in stores):
                    assert not value.known
                    self.last.pop(key, None)
                else:
                    last = self.last.get(key, UNKNOWN)
                    assert (value.endpoints, value.known) == (last.endpoints, last.known)
                continue
            item = stores[1].get(key.namespace, key.service)
            found = [
                read_slice(object_json(each))
                for each in stores[0].snapshot()
                if each.labels.get("kubernetes.io/service-name") == key.service
            ]
            service = None if item is None else read_service(object_json(item))
            whole = port_endpoints(key, service, found, AllowedAddresses(key.allowed))
            assert value.endpoints == whole.endpoints
            assert value.problem == whole.problem
            assert value.known
            assert value.stale == any(store.unavailable_since is not None or not store.answered for store in stores)
            self.last[key] = value


Incremental.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestIncremental = Incremental.TestCase


def test_a_port_that_a_service_has_not_is_logged_whether_the_backend_is_new_or_the_service_changes() -> None:
    wrong = BackendKey("east", "demo", "web", 8443)
    with captured_logs() as logged:
        site = Site(wrong).synced("10.0.0.1")
    (line,) = logged
    assert (line["event"], line["port"]) == ("backend_endpoints", 8443)
    assert line["cause"] == "service demo/web of cluster east has no TCP port 8443; it has http (80)"
    with captured_logs() as logged:
        site.members.list("east", FollowedKind.SLICES, slice_of("web", [endpoint("10.0.0.2")]))
        site.settle()
        assert logged == []
        other = BackendKey("east", "demo", "web", 9)
        site.feed.update((wrong, other))
        site.settle()
    assert [each["port"] for each in logged] == [9]
