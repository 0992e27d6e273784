"""What is read of EndpointSlices and Services, whatever a cluster sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.endpoint_slices import read_service, read_slice
from tests.services.objects import data, endpoint, service_of, slice_of


def conditions(**found: Any) -> tuple[bool, bool, bool]:
    (read,) = read_slice(data(slice_of("web", [endpoint("10.0.0.1", **found)]))).endpoints
    return read.ready, read.serving, read.terminating


def test_conditions_that_are_missing() -> None:
    assert conditions() == (True, True, False)
    assert conditions(ready=False) == (False, False, False)
    assert conditions(ready=False, serving=True, terminating=True) == (False, True, True)
    assert conditions(ready=True, serving=False) == (True, False, False)


def test_null_is_missing() -> None:
    found = slice_of("web", [{"addresses": ["10.0.0.1"], "conditions": {"ready": None, "serving": None}, "zone": None}])
    (read,) = read_slice(data(found)).endpoints
    assert (read.ready, read.serving, read.terminating, read.zone) == (True, True, False, None)


def test_the_first_address_counts() -> None:
    found = slice_of("web", [{"addresses": ["10.0.0.1", "10.0.0.2"]}])
    assert [each.address.text for each in read_slice(data(found)).endpoints] == ["10.0.0.1"]


@pytest.mark.parametrize("address", ["web.example.com", "fd00::1", "", "10.0.0.1 "])
def test_an_address_that_is_not_of_the_type_of_the_slice_is_left_out(address: str) -> None:
    read = read_slice(data(slice_of("web", [endpoint(address), endpoint("10.0.0.2")])))
    assert [each.address.text for each in read.endpoints] == ["10.0.0.2"]
    assert read.unusable == 1


def test_names_are_no_addresses() -> None:
    read = read_slice(data(slice_of("web", [endpoint("10.0.0.1")], family="FQDN")))
    assert (read.endpoints, read.unusable) == ((), 1)


def test_zones_are_words() -> None:
    found = slice_of("web", [endpoint("10.0.0.1", zone="eu-1a"), endpoint("10.0.0.2", zone="a b;c")])
    assert [each.zone for each in read_slice(data(found)).endpoints] == ["eu-1a", None]


@pytest.mark.parametrize(
    ("port", "read"),
    [
        ({"name": "http", "port": 80}, True),
        ({"port": 80, "protocol": "TCP"}, True),
        ({"name": "http", "port": 80, "protocol": "UDP"}, False),
        ({"name": "http", "port": None}, False),
        ({"name": "http", "port": 0}, False),
        ({"name": "http", "port": 65536}, False),
        ({"name": "http", "port": -1}, False),
    ],
)
def test_ports_are_tcp_ports_with_a_number(port: dict[str, Any], read: bool) -> None:
    assert bool(read_slice(data(slice_of("web", [], ports=[port]))).ports) is read


def test_of_ports_with_one_name_the_first_counts() -> None:
    """Else each endpoint would be there as often: 1,000 ports and 1,000 endpoints are a million pods in one object."""
    ports = [{"name": "http", "port": 8000 + number} for number in range(1000)]
    for read in (read_slice(data({**slice_of("web", []), "ports": ports})),
                 read_service(data({**service_of(), "spec": {"ports": ports}}))):  # fmt: skip
        assert [(each.name, each.port) for each in read.ports] == [("http", 8000)]


@pytest.mark.parametrize("name", ["a" * 64, "x" * 1_000_000, "a\nb", "a b", "-", "Ä", "a;b"])
def test_ports_have_names_that_may_be_in_messages(name: str) -> None:
    assert read_service(data({**service_of(), "spec": {"ports": [{"name": name, "port": 80}]}})).ports == ()


def test_a_slice_of_too_many_endpoints_is_cut() -> None:
    many = [endpoint(f"10.0.{number // 256}.{number % 256}") for number in range(1, 1100)]
    read = read_slice(data(slice_of("web", many)))
    assert (len(read.endpoints), read.unusable) == (1000, 99)


def test_services() -> None:
    read = read_service(data(service_of(ipFamilies=["IPv6", "IPv4", "IPv6", "X"])))
    assert (read.headless, read.external_name, read.families) == (False, False, (6, 4))
    assert read_service(data(service_of(clusterIP="None"))).headless
    assert read_service(data(service_of(type="ExternalName"))).external_name
    assert read_service(b"{}").ports == ()


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"endpoints": 5}', b'{"endpoints": [{"addresses": "x"}]}', b"\xff", b"[" * 100_000]
)
def test_what_cannot_be_read(text: bytes) -> None:
    with pytest.raises(UnreadableObject):
        read_slice(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["endpoints", "addresses", "ports", "name", "port", "conditions", "ready", "spec", "zone"]),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON)
def test_anything_is_read_or_refused(document: object) -> None:
    text = json.dumps(document).encode()
    for read in (read_slice, read_service):
        try:
            read(text)
        except UnreadableObject:
            pass
