"""Endpoints that have not read the roles yet."""

from __future__ import annotations

from kubesim.cluster import StartingEndpoints


def test_an_endpoint_is_starting_until_its_time() -> None:
    starting = StartingEndpoints()
    starting.begin(0, 101.0)
    assert starting.includes(0, 100.9)
    assert not starting.includes(0, 101.0)
    assert not starting.includes(0, 100.0)


def test_endpoints_start_one_by_one() -> None:
    starting = StartingEndpoints()
    starting.begin(0, 101.0)
    starting.begin(1, 101.0)
    starting.finish(1)
    assert starting.includes(0, 100.0)
    assert not starting.includes(1, 100.0)
    assert not starting.includes(2, 100.0)
