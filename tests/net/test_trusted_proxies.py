"""Trusted proxies are recognized by their networks."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mcproxy.net.trusted_proxies import is_trusted


@pytest.mark.parametrize(
    ("address", "networks", "trusted"),
    [
        ("192.0.2.7", ["192.0.2.0/24"], True),
        ("192.0.2.7", ["198.51.100.0/24", "192.0.2.7/32"], True),
        ("192.0.2.7", ["198.51.100.0/24"], False),
        ("192.0.2.7", [], False),
        ("192.0.2.7", ["::/0"], False),
        ("fe80::1%eth0", ["fe80::/10"], True),
        ("", ["0.0.0.0/0"], False),
        ("unknown", ["0.0.0.0/0", "::/0"], False),
    ],
)
def test_an_address_is_trusted_in_one_of_the_networks(address: str, networks: list[str], trusted: bool) -> None:
    assert is_trusted(address, [ip_network(each) for each in networks]) is trusted
