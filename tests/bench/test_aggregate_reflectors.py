"""The members that are played, and the reflectors that follow them, in processes of their own."""

from __future__ import annotations

import json

import pytest

from bench.aggregate_reflectors import measure
from bench.fake_api_server import GROUP, discovery
from bench.lab import open_lab
from mcproxy.kube.discovery import api_resources, read_aggregated
from mcproxy.kube.resource import GroupVersionResource


def test_what_is_played_is_what_a_kube_apiserver_says() -> None:
    found = api_resources(read_aggregated(discovery(20)))
    assert len(found) == 20
    assert found[GroupVersionResource(GROUP, "v1", "things19")].watchable
    assert json.loads(discovery(1))["kind"] == "APIGroupDiscoveryList"


@pytest.mark.slow
def test_all_are_followed_and_measured() -> None:
    with open_lab() as lab:
        section = measure(lab, 2, 3, 1.0, settle=0.5)
    assert section.title == "6 reflectors on empty stores, 2 members"
    assert [target.met for target in section.targets][1]
    assert float(section.rows[0][2]) > float(section.rows[1][2]) - 2
