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
    "requestsTotal": 412,
    "requestsPerSecond": 4.25,
    "p50Seconds": 0.004,
    "p99Seconds": 0.021,
}
_RATES = {
    "refusedTotal": 31,
    "requestsPerSecond": 12.5,
    "errorsPerSecond": 0.25,
    "refusedPerSecond": 0.5,
    "p50Seconds": 0.004,
    "p99Seconds": 0.087,
}

_STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "build": "compiled",
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
            **_RATES,
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
            **_RATES,
            "credentials": {"kind": "tokenFile", "identity": "Impersonate", "ready": True},
            "rightsMissing": [],
        }
    ],
    "tunnels": [
        {
            "name": "site-a",
            "role": "hub",
            "connected": True,
            "since": "2026-11-22T11:03:12Z",
            "cause": None,
            "peers": [
                {"peer": "192.0.2.7", "instance": "ab904243", "since": "2026-11-22T11:03:12Z", "rttSeconds": 0.0213}
            ],
            "connections": {"HTTP/2.0": 2},
        },
        {
            "name": "to-centre",
            "role": "edge",
            "listener": "hub",
            "connected": True,
            "hubs": [
                {
                    "url": "https://hub-1.example:6443",
                    "connected": True,
                    "since": "2026-11-22T11:03:12Z",
                    "cause": None,
                    "connections": 3,
                    "rttSeconds": 0.02,
                }
            ],
            "connections": {"HTTP/2.0": 3},
        },
    ],
    "ingresses": [
        {
            "name": "shop",
            "listeners": ["web"],
            "inFlight": 2,
            "requestsTotal": 70,
            "errorsTotal": 1,
            "rules": [
                {
                    "rule": "shop.example.com/cart",
                    "service": "demo/cart",
                    "port": "80",
                    "via": "Endpoints",
                    "weights": {"east": 1},
                    "requestsTotal": 70,
                    "errorsTotal": 1,
                }
            ],
        }
    ],
    "ingressServices": [
        {
            "service": "demo/cart",
            "port": "80",
            "cluster": "east",
            "via": "Endpoints",
            "known": True,
            "stale": False,
            "cause": "",
            "ready": 3,
            "terminating": 0,
            "inFlight": 2,
            "outEndpoints": [],
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
    "refusals": {
        "seconds": 60.0,
        "requests": 5000,
        "refused": 30,
        "kinds": [{"code": "403", "by": "authorizer", "requests": 30, "requestsTotal": 31}],
    },
    "senders": {
        "windowSeconds": 290.0,
        "total": {"requests": 100, "bytes": 5001000, "cpuSeconds": 0.32, "refused": 35},
        "users": [
            {"name": "jane", "requests": 60, "bytes": 5000000, "cpuSeconds": 0.02, "refused": 0},
            {
                "name": "system:serviceaccount:ci:runner",
                "requests": 40,
                "bytes": 1000,
                "cpuSeconds": 0.3,
                "refused": 35,
            },
        ],
        "clients": [{"name": "10.0.0.7", "requests": 100, "bytes": 5001000, "cpuSeconds": 0.32, "refused": 35}],
        "resources": [{"name": "pods", "requests": 100, "bytes": 5001000, "cpuSeconds": 0.32, "refused": 35}],
        "userAgents": [{"name": "kubectl/v1.34", "requests": 9, "bytes": 10, "cpuSeconds": 0.01, "refused": 0}],
    },
    "history": {
        "stepSeconds": 5.0,
        "requestsPerSecond": [1.0, 2.0, 3.5],
        "errorsPerSecond": [0.0, 0.0, 1.0],
        "refusedPerSecond": [0.0, 0.5, 0.5],
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


def with_clusters(count: int) -> dict[str, Any]:
    """A daemon of many clusters, each with a server, a certificate and three endpoints; some are out."""
    status = good()
    names = [f"prod-{('eu-west-1', 'us-east-2', 'ap-southeast-1')[n % 3]}-payments-{n:03}" for n in range(count)]
    (cluster,), (server,), (certificate,) = status["clusters"], status["servers"], status["certificates"]
    limit, (reflector,) = status["flowControls"][0], status["aggregates"][0]["reflectors"]

    def endpoint(name: str, number: int, place: int) -> dict[str, Any]:
        found = {
            **_ENDPOINT,
            "name": f"{name}-control-plane-{place}",
            "url": f"https://{place}.{name}.example.com:6443",
        }
        return {**found, **(_OUT if number % 17 == 1 and place == 1 else {})}

    status["clusters"] = [
        {
            **cluster,
            "name": name,
            "requestsPerSecond": float(number),
            "endpoints": [endpoint(name, number, place) for place in range(3)],
            "rightsMissing": ["impersonate userextras/scopes.authentication.k8s.io"] if number % 25 == 2 else [],
        }
        for number, name in enumerate(names)
    ]
    status["servers"] = [{**server, "name": name, "serverNames": [f"{name}.k8s.example.com"]} for name in names]
    status["certificates"] = [
        {
            **certificate,
            "name": name,
            "subject": f"CN={name}.k8s.example.com,OU=Platform Engineering,O=Example",
            "daysLeft": 7.0 * ((number * 13) % count) + 1,
            "file": f"/etc/mcproxy/tls/{name}/server-chain.crt",
        }
        for number, name in enumerate(names)
    ]
    status["flowControls"] = [{**limit, "name": f"limit-{number}"} for number in range(min(count, 30))]
    status["aggregates"][0]["reflectors"] = [
        {**reflector, "cluster": name, "resource": resource}
        for name in names
        for resource in ("pods", "customresourcedefinitions.apiextensions.k8s.io")
    ]
    return status


def in_flight(count: int) -> dict[str, Any]:
    """Requests in flight, as /debug/requests has them."""
    return {
        "total": count,
        "missing": [],
        "requests": [
            {
                "process": "worker-0",
                "ageSeconds": float(number),
                "state": "responding",
                "client": "10.0.0.7",
                "user": "system:serviceaccount:argocd:argocd-application-controller",
                "server": "fleet",
                "cluster": f"prod-eu-west-1-payments-{number:03}",
                "endpoint": "control-plane-0",
                "protocol": "HTTP/2.0",
                "method": "GET",
                "verb": "watch",
                "path": "/apis/apps/v1/namespaces/shop/deployments?watch=true&allowWatchBookmarks=true",
                "bytesOut": 1000 * number,
            }
            for number in range(count)
        ],
    }
