"""Status documents to make pages of."""

from __future__ import annotations

import copy
from typing import Any

_ENDPOINT = {
    "name": "a",
    "url": "https://10.1.0.11:6443",
    "ready": True,
    "state": "ready",
    "since": "2026-11-22T11:03:12Z",
    "cause": "",
    "inFlight": 7,
    "waiting": 0,
    "connections": 12,
    "idle": 3,
    "latencySeconds": 0.0031,
}

_STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "pid": 812,
    "state": "serving",
    "file": "/etc/mcproxy/mcproxy.yaml",
    "configHash": "3f9a1bc20d77",
    "startedAt": "2026-11-21T09:00:00Z",
    "uptimeSeconds": 98342.1,
    "open": 163,
    "lastReload": {
        "ok": True,
        "at": "2026-11-22T11:40:10.123Z",
        "seconds": 0.412,
        "errors": [],
        "warnings": [],
        "changes": ["flowControls.bulk added"],
    },
    "processes": [
        {
            "name": "mcproxy",
            "pid": 812,
            "role": "single",
            "leader": True,
            "restarts": 0,
            "uptimeSeconds": 98342,
            "open": 163,
            "residentBytes": 61234567,
            "cpuSeconds": 312.4,
            "descriptors": 233,
            "loopLagSeconds": 0.004,
        }
    ],
    "listeners": [
        {
            "name": "public",
            "bind": "0.0.0.0:6443",
            "serves": "API",
            "accepting": True,
            "connections": {"HTTP/1.1": 40, "HTTP/2.0": 120},
            "requests": {"HTTP/1.1": 3, "HTTP/2.0": 160},
            "handshakes": 2,
            "limits": {"connections": 20000},
            "protection": {"resets": 3},
        }
    ],
    "servers": [
        {
            "name": "east",
            "serverNames": ["east.k8s.example.com"],
            "default": False,
            "listeners": ["public"],
            "backend": {"cluster": "east"},
            "requestsTotal": 12834012,
            "errorsTotal": 12,
            "inFlight": 120,
        }
    ],
    "clusters": [
        {
            "name": "east",
            "connections": {"HTTP/1.1": 12},
            "requests": {"HTTP/1.1": 3},
            "endpoints": [_ENDPOINT],
            "requestsTotal": 9876543,
            "errorsTotal": 77,
            "credentials": {"kind": "tokenFile", "identity": "Impersonate", "ready": True},
            "rightsMissing": [],
        }
    ],
    "aggregates": [
        {
            "name": "fleet",
            "reflectorCounts": {"synced": 1},
            "objects": 48211,
            "bytes": 193231001,
            "watchers": 312,
            "queuedBytes": 20312,
            "reflectors": [
                {
                    "cluster": "east",
                    "resource": "pods",
                    "version": "v1",
                    "namespace": "demo",
                    "state": "synced",
                    "objects": 1203,
                    "bytes": 99123,
                    "lists": 1,
                    "lagSeconds": 1.2,
                    "lastEventSeconds": 3.2,
                    "cause": "",
                }
            ],
        }
    ],
    "flowControls": [
        {
            "name": "interactive",
            "schema": "MaxRequestsInflight",
            "per": "All",
            "shared": False,
            "limit": {"max": 200, "maxLongRunning": 5000},
            "inUse": 100,
            "inUseLongRunning": 2311,
            "waiting": 0,
            "refusedTotal": 3,
            "use": 0.5,
        }
    ],
    "certificates": [
        {
            "name": "fleet",
            "kind": "server",
            "subject": "CN=fleet.k8s.example.com",
            "names": ["fleet.k8s.example.com"],
            "notAfter": "2027-12-09T10:00:00Z",
            "daysLeft": 300.1,
            "file": "/etc/mcproxy/tls/fleet.crt",
        }
    ],
    "reviews": {
        "waiting": 0,
        "running": 1,
        "reviewers": [{"kind": "tokens", "name": "corp", "waiting": 0, "running": 1, "cached": 210}],
    },
    "sharedState": {"replicas": 3, "away": False, "limits": {}},
    "caches": {"tokens": 210, "decisions": 1200},
    "history": {
        "stepSeconds": 5.0,
        "requestsPerSecond": [1.0, 2.0, 3.5],
        "errorsPerSecond": [0.0, 0.0, 1.0],
        "bytesPerSecond": [1000.0, 2000.0, 3500.0],
        "p99Seconds": [0.02, None, 0.03],
    },
}


def good() -> dict[str, Any]:
    """A daemon on which all is well."""
    return copy.deepcopy(_STATUS)


def with_endpoints(count: int, *, out: int = 0) -> dict[str, Any]:
    """The same with a cluster of so many endpoints, some of them out."""
    status = good()
    status["clusters"][0]["endpoints"] = [
        {**_ENDPOINT, "name": f"api-{number}", **(_OUT if number < out else {})} for number in range(count)
    ]
    return status


_OUT = {"ready": False, "state": "out", "cause": "it refused the connection", "latencySeconds": None}
