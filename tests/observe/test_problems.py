"""What of a status document needs attention: what clients notice, what is broken, what will be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.observe.problems import problems
from tests.cli.status_document import CERTIFICATE, ENDPOINT, LIMIT, PROCESS, REFLECTOR, document


def found(**changes: Any) -> list[tuple[str, str, str]]:
    """The problems: "severe" (clients notice), "broken" or "warning"; the words; the section of the page."""
    return [
        ("severe" if each.severe else "broken" if each.broken else "warning", each.words, each.section)
        for each in problems(document(**changes))
    ]


def words(**changes: Any) -> list[str]:
    return [f"{severity}: {text}" for severity, text, _ in found(**changes)]


def cluster(*endpoints: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    (east,) = document()["clusters"]
    return [{**east, "endpoints": [{**ENDPOINT, **each} for each in endpoints], **fields}]


def out(name: str = "a") -> dict[str, Any]:
    return {"name": name, "ready": False, "state": "out", "cause": "connection refused"}


def test_a_daemon_that_is_well_has_none() -> None:
    assert found() == []
    assert problems({}) == []


def test_endpoints() -> None:
    assert found(clusters=cluster(out(), out("b"))) == [
        ("severe", "cluster east has no endpoint that is ready: connection refused", "clusters")
    ]
    assert words(clusters=cluster(out(), {"name": "b"})) == [
        "broken: cluster east: endpoint a is out: connection refused"
    ]
    disabled = {"name": "b", "state": "disabled", "ready": False}
    assert found(clusters=cluster({}, disabled)) == []
    assert len(found(clusters=cluster(out(), disabled))) == 1
    assert found(clusters=cluster({"state": "unchecked", "ready": False})) == []


def test_credentials_and_rights() -> None:
    missing = [f"list r{number}" for number in range(5)]
    credentials = {"kind": "exec", "identity": "Proxy", "ready": False}
    assert words(clusters=cluster({}, credentials=credentials, rightsMissing=missing)) == [
        "severe: cluster east: the proxy has no credential for it, see the log",
        "warning: cluster east does not grant the proxy: list r0, list r1, list r2 and 2 more",
    ]
    assert found(clusters=cluster({}, rightsMissing=None)) == []


def test_caches() -> None:
    stale = {**REFLECTOR, "state": "stale", "cause": "connection refused"}
    counts = {"stale": 1, "synced": 3, "unavailable": 2}
    aggregate = {**document()["aggregates"][0], "reflectors": [stale], "reflectorCounts": counts}
    assert found(aggregates=[aggregate]) == [
        ("severe", "aggregate fleet: 2 of 6 caches have no objects, for they were never listed", "aggregates"),
        (
            "broken",
            "aggregate fleet: 1 of 6 caches are served from their last known state; deployments.apps of east: "
            "connection refused",
            "aggregates",
        ),
    ]


def test_certificates_of_one_file_are_one_line() -> None:
    gone = {**CERTIFICATE, "daysLeft": -2.0}
    assert words(certificates=[gone, {**gone, "kind": "client", "name": "east"}]) == [
        "severe: the certificate in /etc/mcproxy/tls/fleet.crt (server fleet, client east) has expired, "
        "on 2027-11-22T12:00:00Z"
    ]
    assert words(certificates=[{**CERTIFICATE, "daysLeft": 12.9}]) == [
        "warning: the certificate in /etc/mcproxy/tls/fleet.crt (server fleet) expires in 12 days, "
        "on 2027-11-22T12:00:00Z"
    ]
    assert found(certificates=[{**CERTIFICATE, "daysLeft": 30.0}]) == []


def test_limits() -> None:
    assert words(flowControls=[{**LIMIT, "use": 0.95, "waiting": 7}]) == [
        "warning: flow control interactive is at 95% of its limit, 7 requests wait"
    ]
    assert words(flowControls=[{**LIMIT, "use": None, "waiting": 7}]) == [
        "warning: flow control interactive: 7 requests wait"
    ]
    refuses_all = {**LIMIT, "use": 1.0, "limit": {"max": 0}}
    assert found(flowControls=[refuses_all, {**LIMIT, "use": None}]) == []
    assert len(words(sharedState={"replicas": 2, "away": True, "limits": 1})) == 1


def test_processes() -> None:
    silent = {**PROCESS, "name": "worker-1", "answered": False, "loopLagSeconds": None}
    late = {**PROCESS, "loopLagSeconds": 0.6, "restarts": 2, "uptimeSeconds": 130.0}
    assert words(processes=[late, silent]) == [
        "severe: process worker-1 (pid 4711) does not answer, its figures are missing",
        "warning: process mcproxy was replaced 2 minutes ago, 2 times since the start, see the log",
        "warning: process mcproxy stood still for 0.6 s in the last minute: it has too little processor time",
    ]
    assert found(processes=[{**PROCESS, "restarts": 2}]) == []  # an hour ago
    starting = {**PROCESS, "loopLagSeconds": 0.6, "uptimeSeconds": 20.0}  # the turn in which it was made
    assert found(processes=[starting]) == []


def test_listeners() -> None:
    (listener,) = document()["listeners"]
    assert words(listeners=[{**listener, "limits": {"connections": 7}}]) == [
        "warning: listener public has 7 of at most 7 connections"
    ]
    closing = [{**listener, "accepting": False}]
    assert words(listeners=closing) == ["severe: listener public (0.0.0.0:6443) does not accept"]
    assert words(listeners=closing, state="stopping", stopsWithin=12.0) == [
        "severe: mcproxy is stopping, for 12 s at most"
    ]


def test_the_daemon() -> None:
    assert words(state="starting") == ["severe: mcproxy is starting"]
    refused = {"ok": False, "errors": ["f:1:1: a: wrong", "more"]}
    assert words(lastReload=refused) == [
        "broken: the last reload was refused, the configuration before it stays: f:1:1: a: wrong (and 1 more)"
    ]
    assert words(logs={"access": {"lost": 3}, "audit": {"lost": 2, "written": 5, "queuedBytes": 0}}) == [
        "warning: 2 events of the audit log were lost since the start, see the log",
        "warning: 3 lines of the access log were lost since the start, see the log",
    ]


def keys(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(key, str) and key != "name":
            yield (*path, key)
        yield from keys(item, (*path, key))


@pytest.mark.parametrize("how", ["missing", "null"])
def test_what_a_process_of_another_version_does_not_tell_is_no_problem(how: str) -> None:
    for path in keys(document()):
        status = document()
        entry: Any = status
        for step in path[:-1]:
            entry = entry[step]
        if how == "missing":
            del entry[path[-1]]
        else:
            entry[path[-1]] = None
        assert problems(status) == [], path
