"""Which objects are made anew."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.services.writer.differences import must_be_replaced


@pytest.mark.parametrize(
    ("resource", "desired", "observed", "replaced"),
    [
        ("endpointslices", {"addressType": "IPv4"}, {"addressType": "IPv4"}, False),
        ("endpointslices", {"addressType": "IPv6"}, {"addressType": "IPv4"}, True),
        ("services", {"spec": {}}, {"spec": {"clusterIP": "10.0.0.1"}}, False),
        ("services", {"spec": {"clusterIP": "None"}}, {"spec": {"clusterIP": "10.0.0.1"}}, True),
        ("services", {"spec": {}}, {"spec": {"clusterIP": "None"}}, True),
        ("services", {"spec": {"ipFamilies": ["IPv6"]}}, {"spec": {"ipFamilies": ["IPv4"]}}, True),
        ("services", {"spec": {"ipFamilies": ["IPv4"]}}, {"spec": {"ipFamilies": ["IPv4", "IPv6"]}}, False),
        ("services", {"spec": {}}, {"spec": {"ipFamilies": ["IPv6"]}}, False),
        ("serviceimports", {"spec": {"type": "Headless"}}, {"spec": {"type": "ClusterSetIP"}}, False),
    ],
)
def test_what_an_api_server_refuses_to_change(
    resource: str, desired: dict[str, Any], observed: dict[str, Any], replaced: bool
) -> None:
    assert must_be_replaced(resource, desired, observed) == replaced
