"""What of a status document needs attention: what clients notice, what is broken, what will be."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.observe.problems import problems
from tests.cli.status_document import (
    CERTIFICATE,
    ENDPOINT,
    HUB_OF_EDGE,
    LIMIT,
    PROCESS,
    REFLECTOR,
    TUNNEL_OF_EDGE,
    TUNNEL_OF_HUB,
    TUNNELS,
    document,
)


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


def test_tunnels_of_a_hub() -> None:
    lost = {**TUNNEL_OF_HUB, "connected": False, "peers": [], "cause": "the edge has closed it"}
    assert found(tunnels=[TUNNEL_OF_HUB]) == []
    assert found(tunnels=[lost]) == [("warning", "tunnel site-a is not connected: the edge has closed it", "tunnels")]
    behind = cluster({**out(), "url": "tunnel:site-a/clusters/k3s"})
    assert [section for _, _, section in found(tunnels=[lost], clusters=behind)] == ["clusters"]
    other = cluster({**out(), "url": "tunnel:site-a-2"})
    assert [section for _, _, section in found(tunnels=[lost], clusters=other)] == ["clusters", "tunnels"]


def test_hubs_of_an_edge() -> None:
    away = {**HUB_OF_EDGE, "url": "https://hub-2:6443", "connected": False, "cause": "no answer"}
    assert found(tunnels=[TUNNEL_OF_EDGE]) == []
    assert found(tunnels=[{**TUNNEL_OF_EDGE, "hubs": [HUB_OF_EDGE, away]}]) == [
        ("broken", "tunnel site-b of listener hub: hub https://hub-2:6443 is not connected: no answer", "tunnels")
    ]
    assert found(tunnels=[{**TUNNEL_OF_EDGE, "hubs": [away, away]}]) == [
        ("severe", "tunnel site-b of listener hub: no hub is connected; https://hub-2:6443: no answer", "tunnels")
    ]


def test_credentials_and_rights() -> None:
    missing = [f"list r{number}" for number in range(5)]
    credentials = {"kind": "exec", "identity": "Proxy", "ready": False}
    assert words(clusters=cluster({}, credentials=credentials, rightsMissing=missing)) == [
        "severe: cluster east: the proxy has no credential for it, see the log",
        "warning: cluster east does not grant the proxy: list r0, list r1, list r2 and 2 more",
    ]
    assert found(clusters=cluster({}, rightsMissing=None)) == []
    assert words(clusters=cluster({}, credentials={"ready": True, "refused": True})) == [
        "severe: cluster east does not accept the proxy's own credential (401), see the log"
    ]
    assert found(clusters=cluster({}, credentials={"ready": True, "refused": False})) == []


def test_caches() -> None:
    stale = {**REFLECTOR, "state": "stale", "cause": "connection refused"}
    counts = {"stale": 1, "synced": 3, "unavailable": 2}
    aggregate = {**document()["aggregates"][0], "reflectors": [stale], "reflectorCounts": counts}
    assert found(aggregates=[aggregate]) == [
        ("severe", "aggregate fleet: 2 of 6 caches have no objects: they were never listed", "aggregates"),
        (
            "broken",
            "aggregate fleet: 1 of 6 caches are served from their last known state; deployments.apps of east: "
            "connection refused",
            "aggregates",
        ),
    ]


def test_resources_of_members_that_are_left_out() -> None:
    one = {"resource": "widgets.x.io", "version": "v2", "cluster": "west", "cause": "it serves v1"}
    aggregate = {**document()["aggregates"][0], "leftOut": [one, one]}
    line = "warning: aggregate fleet: widgets.x.io of west is left out: it serves v1 (and 1 more)"
    assert words(aggregates=[aggregate]) == [line]


def test_api_services() -> None:
    one = document()["apiServices"][0]
    assert found(apiServices=[one]) == []
    down = {**one, "available": "False", "reason": "FailedDiscoveryCheck", "message": "no answer within 5 s"}
    line = "API service v1beta1.metrics.k8s.io (metrics) is unavailable, its requests get 503: no answer within 5 s"
    assert found(apiServices=[down]) == [("severe", line, "api-services")]
    assert found(apiServices=[{**down, "available": "Unknown", "reason": "NotChecked"}]) == []


def test_services_of_ingresses() -> None:
    one = document()["ingressServices"][0]
    assert found(ingressServices=[one]) == []
    gone = {**one, "ready": 0, "cause": "there is no service demo/cart of cluster east"}
    line = "service demo/cart:80 of ingress shop has no ready endpoint: there is no service demo/cart of cluster east"
    assert found(ingressServices=[gone]) == [("severe", line, "ingresses")]
    unknown = {**one, "ready": 0, "known": False}
    line = "service demo/cart:80 of ingress shop has no ready endpoint (east 0 (unknown))"
    assert found(ingressServices=[unknown]) == [("severe", line, "ingresses")]
    out = {**one, "stale": True, "outEndpoints": [{"endpoint": "10.0.0.1:80", "cause": "it did not answer in time"}]}
    line = "warning: service demo/cart:80 of ingress shop: east 3 (1 out, stale)"
    assert words(ingressServices=[out]) == [line]


def test_exported_services() -> None:
    target = document()["exportTargets"][0]
    away = {**target, "cause": "refused the connection"}
    line = "exported services are not written to cluster east: refused the connection"
    assert found(exportTargets=[away]) == [("broken", line, "importers")]
    refuses = {**target, "refusedObjects": 2, "refusals": [{"object": "services demo/x", "cause": "no"}]}
    line = "2 objects of exported services cannot be written to cluster east; services demo/x: no"
    assert found(exportTargets=[refuses]) == [("broken", line, "importers")]
    problem = {
        "namespace": "demo",
        "service": "x",
        "cluster": "west",
        "reason": "NoService",
        "message": "there is none",
    }
    line = "warning: service demo/x of cluster west is not exported as configured: there is none"
    assert words(exportProblems=[problem]) == [line]
    assert words(exportProblems=[problem] * 7)[5] == "warning: 2 more problems of exported services"
    stale = {**document()["exports"][0], "stale": ["west"], "staleCauses": {"west": "it may not be watched (403)"}}
    line = "warning: cluster west is not watched, so services that others import from it stay as they are"
    assert words(exports=[stale]) == [f"{line}: it may not be watched (403)"]
    stale["staleCauses"] = {}
    assert words(exports=[stale]) == [line]


def test_api_services_of_a_cluster_without_an_endpoint_are_one_line() -> None:
    one = document()["apiServices"][0]
    why = 'no endpoint of cluster "metrics" is ready: a: refused'
    down = {**one, "available": "False", "reason": "MissingEndpoints", "message": why}
    failing = {**down, "name": "v3.x.io", "reason": "FailedDiscoveryCheck", "message": "no answer within 5 s"}
    elsewhere = {**down, "name": "v4.x.io", "cluster": "other"}
    assert words(apiServices=[down, {**down, "name": "v2.x.io"}, failing, elsewhere, {**one, "name": "v5.x.io"}]) == [
        f"severe: 2 API services ({one['name']} and others) of cluster metrics are unavailable, "
        f"their requests get 503: {why}",
        "severe: API service v3.x.io (metrics) is unavailable, its requests get 503: no answer within 5 s",
        f"severe: API service v4.x.io (other) is unavailable, its requests get 503: {why}",
    ]


def test_endpoints_of_clusters_that_are_away() -> None:
    (known,) = document()["serviceEndpoints"]
    line = "broken: ingresses: 2 of 3 backends in cluster east are served by their last known endpoints"
    assert words(serviceEndpoints=[{**known, "stale": 2}]) == [line]


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
    (soon,) = words(certificates=[{**CERTIFICATE, "daysLeft": 1.9}])
    assert "expires in 1 day, on" in soon
    (today,) = words(certificates=[{**CERTIFICATE, "daysLeft": 0.4}])
    assert "expires within a day, on" in today


def test_certificate_files_that_cannot_be_used_are_a_line_until_they_can() -> None:
    assert words(certificateFiles=[{"entry": "certificates.site", "cause": "a.crt: the certificate expired"}]) == [
        "broken: the certificate files of certificates.site cannot be used; the former ones stay in use until a "
        "restart: a.crt: the certificate expired"
    ]
    assert found(certificateFiles=[]) == []


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
        "broken: the last reload was refused; the previous configuration stays in force: f:1:1: a: wrong (and 1 more)"
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
    for path in keys(document(tunnels=TUNNELS)):
        status = document(tunnels=copy.deepcopy(TUNNELS))
        entry: Any = status
        for step in path[:-1]:
            entry = entry[step]
        if how == "missing":
            del entry[path[-1]]
        else:
            entry[path[-1]] = None
        assert problems(status) == [], path


def refusals(requests: int, **kinds: int) -> dict[str, Any]:
    """Refusals by what `code_by` says: ``_403_cluster=20``."""
    shown = [
        {"code": name[1:4], "by": name[5:], "requests": number, "requestsTotal": number}
        for name, number in kinds.items()
    ]
    refused = sum(number for name, number in kinds.items() if name[1:4] in ("401", "403", "429"))
    return {"seconds": 60.0, "requests": requests, "refused": refused, "kinds": shown}


def test_a_share_of_requests_that_are_refused() -> None:
    assert found(refusals=refusals(200, _403_authorizer=30, _429_flow_control=9, _404_cluster=100)) == [
        (
            "warning",
            "20% of the requests of the last minute were refused: 30 with 403 by the server's authorizer, 9 with "
            "429 by a flow control",
            "refusals",
        )
    ]
    assert found(refusals=refusals(1000, _403_authorizer=99)) == []  # a small share
    assert found(refusals=refusals(19, _401_authentication=19)) == []  # few
    assert found(refusals=refusals(1000, _404_cluster=500, _409_cluster=400)) == []  # everyday work
