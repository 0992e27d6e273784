"""The endpoints of a backend: kube-proxy's rules, and the table that tells of changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import IPFamily
from mcproxy.services import endpoint_table
from mcproxy.services.endpoint_slices import AllowedAddresses, read_service, read_slice
from mcproxy.services.endpoint_table import (
    UNKNOWN,
    BackendKey,
    EndpointState,
    EndpointTable,
    PodEndpoint,
    PortEndpoints,
    port_endpoints,
)
from tests.services.objects import data, endpoint, service_of, slice_of

READY, TERMINATING = EndpointState.READY, EndpointState.TERMINATING


def found(
    *slices: dict[str, Any],
    service: dict[str, Any] | None = None,
    port: int | str = 80,
    allowed: AllowedAddresses | None = None,
    family: IPFamily | None = None,
) -> PortEndpoints:
    key = BackendKey("east", "demo", "web", port, family=family)
    read = read_service(data(service_of() if service is None else service))
    return port_endpoints(key, read, [read_slice(data(each)) for each in slices], allowed or AllowedAddresses())


def addresses(value: PortEndpoints) -> list[str]:
    return [f"{each.address}:{each.port}" for each in value.endpoints]


def test_ready_endpoints() -> None:
    value = found(slice_of("web", [endpoint("10.0.0.2", zone="a"), endpoint("10.0.0.1", ready=True)]))
    assert value == PortEndpoints((PodEndpoint("10.0.0.1", 8080), PodEndpoint("10.0.0.2", 8080, "a")), known=True)


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({}, READY),
        ({"ready": True}, READY),
        ({"ready": False}, None),
        ({"ready": False, "serving": True}, None),  # neither ready nor ending: not yet, or no more
        ({"ready": False, "serving": True, "terminating": True}, TERMINATING),
        ({"ready": False, "serving": False, "terminating": True}, None),
        ({"ready": False, "terminating": True}, None),  # serving is as ready
        ({"ready": True, "terminating": True}, TERMINATING),  # publishNotReadyAddresses: it ends all the same
    ],
)
def test_conditions(conditions: dict[str, Any], state: EndpointState | None) -> None:
    value = found(slice_of("web", [endpoint("10.0.0.1", **conditions)]))
    assert [each.state for each in value.endpoints] == ([] if state is None else [state])


def test_an_endpoint_in_two_slices_is_one_and_ready_if_one_says_so() -> None:
    ending = slice_of("web", [endpoint("10.0.0.1", ready=False, serving=True, terminating=True)], name="a")
    value = found(ending, slice_of("web", [endpoint("10.0.0.1")], name="b"), ending)
    assert value.endpoints == (PodEndpoint("10.0.0.1", 8080),)


PORTS = [
    {"name": "http", "port": 80, "targetPort": "web"},
    {"name": "grpc", "port": 90, "appProtocol": "kubernetes.io/h2c"},
]


@pytest.mark.parametrize(("port", "target"), [(80, 1), ("http", 1), (90, 2), ("grpc", 2)])
def test_a_port_is_found_by_number_and_by_name(port: int | str, target: int) -> None:
    ports = [{"name": "http", "port": 1}, {"name": "grpc", "port": 2}, {"name": "", "port": 3}]
    value = found(slice_of("web", [endpoint("10.0.0.1")], ports=ports), service=service_of(ports=PORTS), port=port)
    assert addresses(value) == [f"10.0.0.1:{target}"]
    assert value.app_protocol == ("kubernetes.io/h2c" if target == 2 else None)


def test_a_port_without_a_name() -> None:
    one = slice_of("web", [endpoint("10.0.0.1")], ports=[{"name": "", "port": 8080}])
    assert addresses(found(one, service=service_of(ports=[{"port": 80}]))) == ["10.0.0.1:8080"]


def test_pods_of_one_service_may_have_different_ports_of_one_name() -> None:
    first = slice_of("web", [endpoint("10.0.0.1")], ports=[{"name": "http", "port": 1}])
    second = slice_of("web", [endpoint("10.0.0.2")], ports=[{"name": "http", "port": 2}])
    assert addresses(found(first, second)) == ["10.0.0.1:1", "10.0.0.2:2"]


def test_the_slice_may_name_the_protocol() -> None:
    one = slice_of("web", [endpoint("10.0.0.1")], ports=[{"name": "http", "port": 1, "appProtocol": "https"}])
    assert found(one).app_protocol == "https"


@pytest.mark.parametrize(
    ("service", "port", "problem"),
    [
        (service_of(), 81, "has no TCP port 81; it has http (80)"),
        (service_of(), "https", "has no TCP port named https; it has http (80)"),
        (service_of(ports=[]), 80, "has no TCP port 80, and no other one: write"),
        (service_of(ports=[], clusterIP="None"), 80, "has no TCP port 80, and no other one, as it is headless"),
        (service_of(ports=[{"name": "http", "port": 80, "protocol": "UDP"}]), 80, "has no TCP port 80"),
        (service_of(type="ExternalName"), 80, "is of type ExternalName"),
    ],
)
def test_a_port_that_is_not_there_is_reported(service: dict[str, Any], port: int | str, problem: str) -> None:
    value = found(slice_of("web", [endpoint("10.0.0.1")]), service=service, port=port)
    assert value.known
    assert not value.endpoints
    assert problem in value.problem


def test_a_headless_service_with_ports_is_like_any() -> None:
    assert addresses(found(slice_of("web", [endpoint("10.0.0.1")]), service=service_of(clusterIP="None")))


def test_no_service() -> None:
    value = port_endpoints(BackendKey("east", "demo", "web", 80), None, [], AllowedAddresses())
    assert value == PortEndpoints(known=True, problem="there is no service demo/web of cluster east", missing=True)


def test_addresses_that_are_not_allowed() -> None:
    value = found(slice_of("web", [endpoint("127.0.0.1"), endpoint("169.254.169.254")]))
    assert not value.endpoints
    assert "none of its 2 addresses is allowed" in value.problem
    value = found(slice_of("web", [endpoint("127.0.0.1"), endpoint("10.0.0.1")]))
    assert addresses(value) == ["10.0.0.1:8080"]


def test_of_two_families_the_primary_one_is_used() -> None:
    both = [
        slice_of("web", [endpoint("10.0.0.1")], name="a"),
        slice_of("web", [endpoint("fd00::1")], name="b", family="IPv6"),
    ]
    assert addresses(found(*both)) == ["10.0.0.1:8080"]
    assert addresses(found(*both, service=service_of(ipFamilies=["IPv6", "IPv4"]))) == ["fd00::1:8080"]
    assert addresses(found(both[1], service=service_of(ipFamilies=["IPv4", "IPv6"]))) == ["fd00::1:8080"]


def test_a_backend_may_name_the_family() -> None:
    both = [
        slice_of("web", [endpoint("10.0.0.1")], name="a"),
        slice_of("web", [endpoint("fd00::1")], name="b", family="IPv6"),
    ]
    assert addresses(found(*both, family=IPFamily.IPV6)) == ["fd00::1:8080"]
    assert addresses(found(*both, service=service_of(ipFamilies=["IPv6", "IPv4"]), family=IPFamily.IPV4)) == [
        "10.0.0.1:8080"
    ]
    none = found(both[0], family=IPFamily.IPV6)
    assert none.endpoints == ()
    assert "has no endpoint with an address of IPv6 (ipFamily)" in none.problem
    assert not none.missing


def test_too_many_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_table, "MAX_ENDPOINTS", 2)
    ending = endpoint("10.0.0.1", ready=False, serving=True, terminating=True)
    value = found(slice_of("web", [ending, endpoint("10.0.0.2"), endpoint("10.0.0.3")]))
    assert addresses(value) == ["10.0.0.2:8080", "10.0.0.3:8080"]
    assert "has 3 endpoints: 2 of them are used" in value.problem


CONDITIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={name: st.booleans() for name in ("ready", "serving", "terminating")}
)
ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1", "10.1.0.1"])
SLICES = st.lists(
    st.lists(st.tuples(ADDRESSES, CONDITIONS), max_size=4).map(
        lambda each: slice_of("web", [endpoint(address, **conditions) for address, conditions in each])
    ),
    max_size=4,
)


@given(SLICES, st.randoms())
def test_the_order_of_slices_is_of_no_concern(slices: list[dict[str, Any]], random: Any) -> None:
    value = found(*slices)
    random.shuffle(slices)
    for each in slices:
        random.shuffle(each["endpoints"])
    assert found(*slices) == value
    assert list(value.endpoints) == sorted(value.endpoints, key=lambda each: each.address)
    assert not any(each.address.startswith("127") for each in value.endpoints)


# -- the table ------------------------------------------------------------------------------------------------------

EAST, WEST = BackendKey("east", "demo", "web", 80), BackendKey("west", "demo", "web", 80)
VALUE = PortEndpoints((PodEndpoint("10.0.0.1", 80),), known=True)


def test_subscribers_are_told_of_their_keys() -> None:
    table = EndpointTable()
    told: list[BackendKey] = []
    all_told: list[BackendKey] = []
    unsubscribe = table.subscribe([EAST, EAST], told.append)
    table.subscribe_all(all_told.append)
    assert table.set(EAST, VALUE)
    assert not table.set(EAST, VALUE)
    assert table.set(WEST, VALUE)
    assert (told, all_told) == ([EAST], [EAST, WEST])
    unsubscribe()
    unsubscribe()
    table.keep([WEST])
    assert (told, all_told) == ([EAST], [EAST, WEST, EAST])
    assert (table.get(EAST), table.get(WEST)) == (UNKNOWN, VALUE)
    assert dict(table.items()) == {WEST: VALUE}


def test_a_subscriber_that_fails_stops_no_other() -> None:
    table = EndpointTable()
    told: list[BackendKey] = []

    def fail(key: BackendKey) -> None:
        raise RuntimeError

    table.subscribe([EAST], fail)
    table.subscribe([EAST], told.append)
    table.set(EAST, VALUE)
    assert told == [EAST]
