"""The tables of a status document: cells, states, and which rows need attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.observe.senders import KINDS
from mcproxy.observe.tables import daemon, services, traffic, tunnels
from mcproxy.observe.tables.table import Column, Form, Table
from tests.cli.status_document import (
    CERTIFICATE,
    ENDPOINT,
    HUB_OF_EDGE,
    INGRESS_SERVICE,
    LIMIT,
    PROCESS,
    REFLECTOR,
    TUNNEL_OF_EDGE,
    TUNNEL_OF_HUB,
    TUNNELS,
    document,
)

TABLES = [
    *(
        each
        for module in (daemon, services, traffic, tunnels)
        for each in vars(module).values()
        if isinstance(each, Table)
    ),
    *(traffic.senders(kind, measure) for kind in KINDS for measure in ("requests", "bytes", "cpuSeconds", "refused")),
]


def cells(table: Table, status: dict[str, Any]) -> list[list[object]]:
    """Return the values of a table, after reading everything that a renderer reads."""
    rows = []
    for entry in table.entries(status):
        assert table.attention(entry) in (0, 1, 2)
        for column in table.columns:
            assert column.state_of(entry) in ("good", "warn", "bad", "plain", "")
        rows.append([column.value(entry) for column in table.columns])
    return rows


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each key of a document, however deep."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from changes(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from changes(inner, (*path, index))


def test_every_table_has_rows_whose_name_is_known() -> None:
    status = document(
        reviews={"reviewers": [{"cluster": "east", "kind": "TokenReview", "waiting": 0, "running": 1, "cached": 2}]},
        tunnels=TUNNELS,
        exportProblems=[{"namespace": "demo", "service": "cart", "cluster": "east", "reason": "X", "message": "why"}],
    )
    for table in TABLES:
        rows = cells(table, status)
        assert rows or table.key.startswith("senders"), table.key
        assert all(row[table.name] not in (None, "") for row in rows), table.key
    assert len({table.key for table in TABLES}) == len(TABLES) - 3 * len(KINDS)  # one key for four measures


def test_a_document_without_any_one_key_is_shown_without_it() -> None:
    """A process of another version may not know a key, or have null for it."""
    whole = document(tunnels=TUNNELS)
    for path in changes(whole):
        for missing in (True, False):
            status = copy.deepcopy(whole)
            at: Any = status
            for step in path[:-1]:
                at = at[step]
            if missing:
                del at[path[-1]]
            else:
                at[path[-1]] = None
            for table in TABLES:
                cells(table, status)
    for table in TABLES:
        assert cells(table, {}) == []


@pytest.mark.parametrize(
    ("table", "key", "entry", "attention"),
    [
        (traffic.CLUSTERS, "clusters", {"endpoints": [ENDPOINT]}, 0),
        (traffic.CLUSTERS, "clusters", {"endpoints": [ENDPOINT, {**ENDPOINT, "ready": False}]}, 1),
        (traffic.CLUSTERS, "clusters", {"endpoints": [{**ENDPOINT, "ready": False}]}, 2),
        (traffic.CLUSTERS, "clusters", {"endpoints": [{**ENDPOINT, "ready": False, "state": "disabled"}]}, 0),
        (traffic.CLUSTERS, "clusters", {"endpoints": [ENDPOINT], "credentials": {"kind": "token", "ready": False}}, 2),
        (traffic.CLUSTERS, "clusters", {"endpoints": [ENDPOINT], "rightsMissing": ["impersonate users"]}, 1),
        (traffic.LISTENERS, "listeners", {"accepting": True, "connections": {"HTTP/1.1": 9}, "limits": {}}, 0),
        (
            traffic.LISTENERS,
            "listeners",
            {"accepting": True, "connections": {"HTTP/1.1": 9}, "limits": {"connections": 9}},
            1,
        ),
        (traffic.LISTENERS, "listeners", {"accepting": False}, 2),
        (daemon.FLOW_CONTROLS, "flowControls", LIMIT, 0),
        (daemon.FLOW_CONTROLS, "flowControls", {**LIMIT, "use": 1.0}, 1),
        (daemon.FLOW_CONTROLS, "flowControls", {**LIMIT, "waiting": 1}, 1),
        (daemon.CERTIFICATES, "certificates", CERTIFICATE, 0),
        (daemon.CERTIFICATES, "certificates", {**CERTIFICATE, "daysLeft": 3.0}, 1),
        (daemon.CERTIFICATES, "certificates", {**CERTIFICATE, "daysLeft": 0.0}, 2),
        (daemon.PROCESSES, "processes", {**PROCESS, "restarts": 3}, 0),
        (daemon.PROCESSES, "processes", {**PROCESS, "answered": False}, 2),
        (services.CACHES, "aggregates", {"name": "fleet", "reflectors": [REFLECTOR]}, 0),
        (services.CACHES, "aggregates", {"name": "fleet", "reflectors": [{**REFLECTOR, "state": "stale"}]}, 1),
        (services.CACHES, "aggregates", {"name": "fleet", "reflectors": [{**REFLECTOR, "state": "unavailable"}]}, 2),
        (
            services.CACHES,
            "aggregates",
            {"name": "fleet", "reflectors": [{**REFLECTOR, "state": "of a later version"}]},
            0,
        ),
        (tunnels.TUNNELS, "tunnels", TUNNEL_OF_HUB, 0),
        (tunnels.TUNNELS, "tunnels", {**TUNNEL_OF_HUB, "connected": False}, 2),
        (tunnels.TUNNELS, "tunnels", TUNNEL_OF_EDGE, 0),
        (tunnels.TUNNELS, "tunnels", {**TUNNEL_OF_EDGE, "hubs": [{**HUB_OF_EDGE, "connected": False}]}, 2),
        (services.INGRESS_SERVICES, "ingressServices", INGRESS_SERVICE, 0),
        (services.INGRESS_SERVICES, "ingressServices", {**INGRESS_SERVICE, "stale": True}, 1),
        (services.INGRESS_SERVICES, "ingressServices", {**INGRESS_SERVICE, "ready": 0}, 2),
    ],
)
def test_a_row_needs_attention(table: Table, key: str, entry: dict[str, Any], attention: int) -> None:
    [row] = table.entries({key: [entry]})
    assert table.attention(row) == attention


def test_a_tunnel_at_the_hub_is_a_row_and_each_hub_of_an_edge_is_one() -> None:
    away = {**HUB_OF_EDGE, "url": "https://hub-2.example:6443", "connected": False, "cause": "refused"}
    edges = [{**TUNNEL_OF_HUB["peers"][0], "peer": f"192.0.2.{number}"} for number in range(5)]
    rows = list(
        tunnels.TUNNELS.entries(
            {
                "tunnels": [
                    TUNNEL_OF_HUB,
                    {**TUNNEL_OF_HUB, "peers": edges},
                    {**TUNNEL_OF_HUB, "peers": [], "connected": False},
                    {**TUNNEL_OF_EDGE, "hubs": [HUB_OF_EDGE, away]},
                ]
            }
        )
    )
    assert [(each["name"], each["by"], each["peer"], each["connected"]) for each in rows] == [
        ("site-a", "an edge", "192.0.2.7", True),
        ("site-a", "an edge", "192.0.2.0, 192.0.2.1, 192.0.2.2 and 2 more", True),
        ("site-a", "an edge", None, False),
        ("site-b", "listener hub", "https://hub-1.example:6443", True),
        ("site-b", "listener hub", "https://hub-2.example:6443", False),
    ]
    assert [(each["connections"], each["rttSeconds"]) for each in (rows[0], rows[2], rows[3])] == [
        (3, 0.021),
        (3, None),
        (3, 0.02),
    ]


def test_what_is_refused_now_needs_attention_and_has_its_share() -> None:
    kinds = [{"code": "403", "by": "authorizer", "requests": 6}, {"code": "404", "by": "upstream", "requests": 30}]
    first, second = traffic.REFUSALS.entries({"refusals": {"requests": 60, "kinds": kinds}})
    assert (first["share"], second["share"]) == (0.1, 0.5)
    assert traffic.REFUSALS.attention(first) == 1
    assert traffic.REFUSALS.attention(second) == 0


def test_the_certificate_that_expires_next_is_first_and_one_without_an_end_last() -> None:
    every = [{**CERTIFICATE, "name": str(days), "daysLeft": days} for days in (40.0, None, -1.0, 3.0)]
    assert [each["name"] for each in daemon.CERTIFICATES.entries({"certificates": every})] == [
        "-1.0",
        "3.0",
        "40.0",
        "None",
    ]


def test_a_state_that_is_a_word_applies_to_values_other_than_nothing() -> None:
    column = Column("Waiting", "waiting", Form.COUNT, state="warn")
    assert [column.state_of(each) for each in ({}, {"waiting": None}, {"waiting": 0}, {"waiting": 1})] == [
        "",
        "",
        "",
        "warn",
    ]
