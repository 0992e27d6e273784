"""Which addresses of endpoints are used."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.endpoint_slices import LOCAL_NETWORKS, NEVER_ALLOWED, AllowedAddresses, parse_address


def allows(text: str, *networks: str) -> bool:
    address = parse_address(text)
    return address is not None and address in AllowedAddresses(map(ip_network, networks))


@pytest.mark.parametrize(
    "text", ["10.1.2.3", "192.168.0.1", "100.64.0.1", "240.0.0.1", "8.8.8.8", "fd00::1", "2001:db8::1"]
)
def test_addresses_of_pods_are_allowed(text: str) -> None:
    assert allows(text)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "239.255.255.255",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "64:ff9b::169.254.169.254",
    ],
)
def test_addresses_of_the_own_machine_and_of_groups_are_not(text: str) -> None:
    assert not allows(text)
    assert not allows(text, "0.0.0.0/0", "::/0")  # whoever allows all does not mean these


@pytest.mark.parametrize(
    "text", ["", "web", "010.0.0.1", "10.0.0", "10.0.0.1/8", "fe80::1%eth0", "1.2.3.4\0", " 1.2.3.4", "\udc80"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert parse_address(text) is None


def test_networks_limit() -> None:
    assert allows("10.2.0.1", "10.2.0.0/16")
    assert not allows("10.3.0.1", "10.2.0.0/16")
    assert not allows("fd00::1", "10.2.0.0/16")
    assert allows("fd00::1", "10.2.0.0/16", "fd00::/8")


def test_local_addresses_are_allowed_where_they_are_named() -> None:
    assert allows("127.0.0.1", "127.0.0.0/8")
    assert allows("127.0.0.1", "0.0.0.0/0", "127.0.0.1/32")
    assert not allows("127.0.0.2", "0.0.0.0/0", "127.0.0.1/32")
    assert allows("::1", "::1/128")
    assert not allows("169.254.1.1", "127.0.0.0/8")


def test_groups_are_never_allowed() -> None:
    assert not allows("224.0.0.1", "224.0.0.0/8")
    assert not allows("::ffff:127.0.0.1", "::ffff:0:0/96", "127.0.0.0/8")


@given(st.ip_addresses())
def test_every_address_is_one_range_or_allowed(address: object) -> None:
    wanted = ip_address(str(address))
    refused = any(
        wanted in network for network in (*NEVER_ALLOWED, *LOCAL_NETWORKS) if network.version == wanted.version
    )
    assert allows(str(wanted)) == (not refused)
    parsed = parse_address(str(wanted))
    assert parsed is not None
    assert parse_address(parsed.text) == parsed
