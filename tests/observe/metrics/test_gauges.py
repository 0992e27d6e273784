"""The gauges of a status document."""

import subprocess
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from twisted.internet.defer import Deferred

from mcproxy.observe.metrics.exposition import metrics_text
from mcproxy.observe.metrics.families import COUNTED
from mcproxy.observe.metrics.gauges import GAUGES, gauges_of
from mcproxy.observe.metrics.metrics import Metrics
from tests.cli.status_document import HUB_OF_EDGE, TUNNEL_OF_EDGE, TUNNEL_OF_HUB
from tests.observe.metrics.records import record
from tests.support.clock import Clock

REFLECTOR: dict[str, Any] = {
    "cluster": "east", "resource": "deployments.apps", "version": "v1", "namespace": "", "state": "synced",
    "objects": 7, "bytes": 700, "lists": 2, "lagSeconds": 1.5, "lastEventSeconds": None, "cause": "",
}  # fmt: skip
ENDPOINT: dict[str, Any] = {
    "name": "a", "url": "https://10.0.0.1", "ready": True, "state": "ready", "inFlight": 3, "waiting": 0,
    "connections": 2, "idle": 1, "latencySeconds": 0.01,
}  # fmt: skip
PROCESS: dict[str, Any] = {
    "name": "worker-0", "pid": 7, "role": "worker", "restarts": 2, "open": 5, "residentBytes": 1000,
    "virtualBytes": 5000, "cpuSeconds": 12.5, "descriptors": 30, "maxDescriptors": 1024, "startedAt": 1.7e9,
    "loopLagSeconds": 0.02, "auditQueuedBytes": 10,
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "1.0",
    "build": "compiled",
    "startedAt": "2026-01-01T00:00:00Z",
    "configHash": "abc",
    "lastReload": {"ok": False, "at": "2026-01-01T01:00:00Z"},
    "processes": [PROCESS],
    "listeners": [
        {
            "name": "public", "bind": "0.0.0.0:6443", "accepting": True, "connections": {"HTTP/2.0": 4},
            "requests": {"HTTP/2.0": 9}, "handshakes": 1, "limits": {"connections": 20000},
        }
    ],
    "servers": [{"name": "east", "inFlight": 6}],
    "clusters": [
        {
            "name": "east", "connections": {"HTTP/1.1": 2}, "requests": {"HTTP/1.1": 1},
            "endpoints": [ENDPOINT, {**ENDPOINT, "name": "b", "ready": False, "state": "out", "latencySeconds": None},
                          {**ENDPOINT, "name": "c", "ready": False, "state": "disabled"}],
            "credentials": {"ready": True},
            "rightsMissing": ["get nodes"],
        }
    ],
    "ingressServices": [
        {"service": "a/b", "port": "80", "cluster": "east", "ready": 2, "terminating": 1, "outEndpoints": [{}]}
    ],
    "exports": [{"sources": ["west"], "stale": ["west"]}],
    "exportTargets": [{"cluster": "east", "leads": True, "pending": 2, "refusedObjects": 1}],
    "exportProblems": [{"cluster": "west", "reason": "NoService"}],
    "apiServices": [
        {"name": "v1.zoo.io", "cluster": "zoo", "available": "False"},
        {"name": "v1.a.io", "cluster": "a", "available": "True"},
        {"name": "v1.b.io", "cluster": "b", "available": "Unknown"},
    ],
    "aggregates": [
        {
            "name": "fleet", "reflectors": [REFLECTOR, {**REFLECTOR, "resource": "pods", "state": "stale"}],
            "reflectorCounts": {"synced": 1, "stale": 1}, "objects": 14, "bytes": 1400, "watchers": 3,
            "queuedBytes": 50,
        }
    ],
    "serviceCaches": {"reflectorCounts": {"synced": 4}},
    "serviceEndpoints": [
        {"cluster": "east", "backends": 3, "stale": 1, "unknown": 0, "problems": 1, "ready": 12, "terminating": 2},
    ],
    "flowControls": [
        {"name": "bulk", "limit": {"qps": 50, "burst": 100}, "inUse": 0, "inUseLongRunning": 0, "waiting": 2,
         "use": 0.5},
        {"name": "shared", "limit": {"max": 10, "maxLongRunning": None, "queue": 5}, "inUse": 4, "inUseLongRunning": 1,
         "waiting": 0, "use": None},
    ],
    "tunnels": [TUNNEL_OF_HUB, {**TUNNEL_OF_HUB, "name": "site-c", "connected": False, "peers": [], "connections": {}},
                {**TUNNEL_OF_EDGE, "hubs": [HUB_OF_EDGE, {**HUB_OF_EDGE, "url": "https://hub-2.example:6443",
                                                          "connected": False, "rttSeconds": None}]}],
    "reviews": {"reviewers": [{"kind": "access", "name": "east", "waiting": 1, "running": 2, "cached": 3, "places": 64,
         "largestShare": 1}]},
    "certificates": [
        {"kind": "server", "name": "fleet", "notAfter": "2027-01-01T00:00:00Z"},
        {"kind": "server", "name": "fleet", "notAfter": "2026-07-01T00:00:00Z"},
    ],
}  # fmt: skip


def values(status: dict[str, Any]) -> dict[tuple[str, ...], float]:
    return {(family.name, *labels): number for family, samples in gauges_of(status) for labels, (number,) in samples}


def test_each_gauge_is_a_place_in_the_document() -> None:
    found = values(STATUS)
    missing = {gauge.family.name for gauge in GAUGES} - {name for name, *_ in found}
    assert missing == {"mcproxy_reflector_last_event_age_seconds"}  # None in this document
    expected = {
        ("mcproxy_build_info", "1.0", "compiled"): 1,
        ("mcproxy_config_last_reload_successful",): 0,
        ("mcproxy_config_last_reload_timestamp_seconds",): 1767229200,
        ("mcproxy_requests_in_flight", "east"): 6,
        ("mcproxy_listener_connections", "public", "HTTP/2.0"): 4,
        ("mcproxy_listener_connections_limit", "public"): 20000,
        ("mcproxy_endpoint_up", "east", "a"): 1,
        ("mcproxy_endpoint_up", "east", "b"): 0,
        ("mcproxy_tunnel_connected", "site-a", "192.0.2.7"): 1,
        ("mcproxy_tunnel_connected", "site-c", ""): 0,
        ("mcproxy_tunnel_connected", "site-b", "https://hub-1.example:6443"): 1,
        ("mcproxy_tunnel_connected", "site-b", "https://hub-2.example:6443"): 0,
        ("mcproxy_tunnel_connections", "site-a", "HTTP/2.0"): 2,
        ("mcproxy_tunnel_connections", "site-b", "HTTP/2.0"): 3,
        ("mcproxy_tunnel_rtt_seconds", "site-a", "192.0.2.7"): 0.021,
        ("mcproxy_tunnel_rtt_seconds", "site-b", "https://hub-1.example:6443"): 0.02,
        ("mcproxy_cluster_rights_missing", "east"): 1,
        ("mcproxy_aggregate_reflectors", "fleet", "stale"): 1,
        ("mcproxy_reflector_synced", "fleet", "east", "deployments.apps", "v1", ""): 1,
        ("mcproxy_reflector_synced", "fleet", "east", "pods", "v1", ""): 0,
        ("mcproxy_flow_control_limit", "bulk", "tokens"): 100,
        ("mcproxy_flow_control_limit", "shared", "short"): 10,
        ("mcproxy_flow_control_limit", "shared", "queue"): 5,
        ("mcproxy_certificate_expiry_timestamp_seconds", "server", "fleet"): 1782864000,
        ("process_cpu_seconds_total", "worker-0"): 12.5,
        ("mcproxy_audit_queue_bytes", "worker-0"): 10,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert ("mcproxy_endpoint_up", "east", "c") not in found  # it is disabled
    assert ("mcproxy_flow_control_use_ratio", "shared") not in found
    assert ("mcproxy_tunnel_connected", "site-a", "") not in found
    assert ("mcproxy_tunnel_rtt_seconds", "site-b", "https://hub-2.example:6443") not in found
    assert ("mcproxy_endpoint_health_check_duration_seconds", "east", "b") not in found


def test_before_the_first_reload_the_start_counts_as_one() -> None:
    found = values({**STATUS, "lastReload": None})
    assert found["mcproxy_config_last_reload_successful",] == 1
    assert found["mcproxy_config_last_reload_timestamp_seconds",] == found["mcproxy_start_time_seconds",]


def test_process_and_its_successor_with_the_same_name_are_one_series() -> None:
    successor = {
        **PROCESS,
        "pid": 8,
        "residentBytes": 500,
        "startedAt": 1.8e9,
        "loopLagSeconds": 0.5,
        "cpuSeconds": None,
    }
    found = values({**STATUS, "processes": [PROCESS, successor]})
    assert found["process_resident_memory_bytes", "worker-0"] == 1500
    assert found["process_start_time_seconds", "worker-0"] == 1.8e9
    assert found["mcproxy_loop_lag_max_seconds", "worker-0"] == 0.5
    assert found["mcproxy_process_restarts_total", "worker-0"] == 2
    assert found["process_cpu_seconds_total", "worker-0"] == 12.5


@pytest.mark.parametrize("status", [{}, {"clusters": None}, {"clusters": [{}]}, {"listeners": [{"name": "a"}]}])
def test_what_the_document_does_not_have_makes_no_series(status: dict[str, Any]) -> None:
    found = values(status)
    assert set(found) <= {
        ("mcproxy_build_info", "None", "None"), ("mcproxy_config_last_reload_successful",),
    }  # fmt: skip


def test_an_api_service_is_unavailable_where_that_is_known() -> None:
    found = values(STATUS)
    assert [
        found["mcproxy_unavailable_apiservice", *labels] for labels in (("v1.zoo.io", "zoo"), ("v1.a.io", "a"))
    ] == [
        1,
        0,
    ]
    assert found["mcproxy_unavailable_apiservice", "v1.b.io", "b"] == 0  # its requests pass


@pytest.mark.parametrize("key", ["apiServices", "clusters", "aggregates", "listeners", "processes", "flowControls"])
def test_series_have_different_labels(key: str) -> None:
    doubled = {**STATUS, key: [*STATUS[key], *({**entry, "bind": "other"} for entry in STATUS[key])]}
    if key in ("listeners", "processes"):  # of which the document may have several with one name
        seen = [(family.name, labels) for family, samples in gauges_of(doubled) for labels, _ in samples]
        assert len(seen) == len(set(seen))
    seen = [(family.name, labels) for family, samples in gauges_of(STATUS) for labels, _ in samples]
    assert len(seen) == len(set(seen))


def test_promtool_and_the_parser_take_the_whole_text() -> None:
    metrics = Metrics()
    metrics.finished(record(authenticator="oidc", cached=True, attempts=2))
    for family in metrics.counts.families:
        metrics.counts.series(family, ("x",) * len(family.labels))[0] += 1
    text: list[bytes] = []
    Deferred.fromCoroutine(metrics_text(Clock(), metrics, STATUS)).addCallback(text.extend)
    whole = b"".join(text)
    names = [(metric.name, metric.type) for metric in parse(whole.decode())]  # one name of kube-aggregator is both
    assert len(names) == len(set(names)) == len(GAUGES) - 1 + len(COUNTED)
    openmetrics: list[bytes] = []
    work = metrics_text(Clock(), metrics, STATUS, openmetrics=True)
    Deferred.fromCoroutine(work).addCallback(openmetrics.extend)
    found = parse_openmetrics(b"".join(openmetrics).decode())  # type: ignore[no-untyped-call]
    assert {metric.name for metric in found} > {
        "aggregator_unavailable_apiservice",
        "aggregator_unavailable_apiservice_total",
    }
    command = ["promtool", "check", "metrics"]
    checked = subprocess.run(command, input=whole, capture_output=True, check=False, timeout=120)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
