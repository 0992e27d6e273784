"""A status document as a daemon answers it, for the commands that show it; and a stand-in for that daemon."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

BOUNDS = [0.001, 0.01, 0.1, 1.0]

PROCESS = {
    "name": "mcproxy",
    "pid": 4711,
    "role": "single",
    "leader": True,
    "restarts": 0,
    "uptimeSeconds": 3720.0,
    "open": 3,
    "residentBytes": 61_000_000,
    "cpuSeconds": 12.5,
    "descriptors": 40,
    "loopLagSeconds": 0.004,
}

ENDPOINT = {
    "name": "a",
    "url": "https://10.0.0.1:6443",
    "ready": True,
    "state": "ready",
    "since": "2026-11-22T12:00:00Z",
    "cause": "",
    "inFlight": 2,
    "waiting": 0,
    "connections": 4,
    "idle": 2,
    "latencySeconds": 0.0042,
    "requestsTotal": 900,
    "requestSeconds": 9.0,
    "requestsPerSecond": 1.5,
    "p99Seconds": 0.031,
}

SENDER = {"name": "jane", "requests": 60, "bytes": 5_000_000, "cpuSeconds": 0.02, "refused": 0}
_LOUD = {"name": "system:serviceaccount:ci:runner", "requests": 40, "bytes": 1000, "cpuSeconds": 0.3, "refused": 35}
SENDERS = {
    "windowSeconds": 290.0,
    "total": {"requests": 100, "bytes": 5_001_000, "cpuSeconds": 0.32, "refused": 35},
    "users": [SENDER, _LOUD],
    "clients": [{**SENDER, "name": "10.0.0.7"}],
    "resources": [{**SENDER, "name": "pods"}],
    "userAgents": [{**SENDER, "name": "kubectl/v1.34 (\x1b[2J)"}],
}

_SECOND = {**ENDPOINT, "name": "b", "url": "https://10.0.0.2:6443", "requestsTotal": 0, "requestSeconds": 0.0}

CERTIFICATE = {
    "name": "fleet",
    "kind": "server",
    "subject": "CN=fleet",
    "names": ["fleet.example.com"],
    "notAfter": "2027-11-22T12:00:00Z",
    "daysLeft": 365.0,
    "file": "/etc/mcproxy/tls/fleet.crt",
    "certificates": 1,
}

LIMIT = {
    "name": "interactive",
    "schema": "MaxRequestsInflight",
    "per": "All",
    "shared": False,
    "limit": {"max": 200, "maxLongRunning": 5000, "queue": 100},
    "inUse": 20,
    "inUseLongRunning": 300,
    "waiting": 0,
    "refusedTotal": 0,
    "use": 0.1,
}

REFLECTOR = {
    "cluster": "east",
    "resource": "deployments.apps",
    "version": "v1",
    "namespace": "",
    "state": "synced",
    "objects": 17,
    "bytes": 30_000,
    "lists": 1,
    "lagSeconds": 12.0,
    "lastEventSeconds": None,
    "cause": "",
}

INGRESS = {
    "name": "shop",
    "listeners": ["web"],
    "inFlight": 2,
    "requestsTotal": 70,
    "errorsTotal": 1,
    "rules": [
        {
            "rule": "shop.example.com/cart",
            "host": "shop.example.com",
            "path": "/cart",
            "pathType": "Prefix",
            "service": "demo/cart",
            "port": "80",
            "via": "Endpoints",
            "weights": {"east": 1},
            "requestsTotal": 70,
            "errorsTotal": 1,
        }
    ],
}
INGRESS_SERVICE = {
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

EXPORT = {
    "namespace": "demo",
    "service": "cart",
    "sources": ["west"],
    "stale": [],
    "importers": ["east"],
    "slices": 1,
    "kept": 0,
    "problems": 0,
}
EXPORT_TARGET = {
    "cluster": "east",
    "leads": True,
    "identity": "host_1",
    "holder": "host_1",
    "transitions": 0,
    "pending": 0,
    "refusedObjects": 0,
    "refusals": [],
    "cause": "",
}

TUNNEL_OF_HUB: dict[str, Any] = {
    "name": "site-a",
    "role": "hub",
    "connected": True,
    "since": "2026-11-22T12:00:00Z",
    "cause": None,
    "peers": [
        {"peer": "192.0.2.7", "instance": "ab904243", "since": "2026-11-22T12:00:00Z", "rttSeconds": 0.021},
        {"peer": "192.0.2.7", "instance": "ab904243", "since": "2026-11-22T12:00:00Z", "rttSeconds": 0.019},
    ],
    "connections": {"HTTP/2.0": 2, "HTTP/1.1": 1},
}
HUB_OF_EDGE: dict[str, Any] = {
    "url": "https://hub-1.example:6443",
    "connected": True,
    "since": "2026-11-22T12:00:00Z",
    "cause": None,
    "connections": 3,
    "rttSeconds": 0.02,
}
TUNNEL_OF_EDGE: dict[str, Any] = {
    "name": "site-b",
    "role": "edge",
    "listener": "hub",
    "connected": True,
    "hubs": [HUB_OF_EDGE],
    "connections": {"HTTP/2.0": 3, "HTTP/1.1": 0},
}
TUNNELS = [TUNNEL_OF_HUB, TUNNEL_OF_EDGE]

_DOCUMENT: dict[str, Any] = {
    "ok": True,
    "version": "0.1.0",
    "build": "compiled",
    "pid": 4711,
    "state": "serving",
    "file": "/etc/mcproxy/mcproxy.yaml",
    "configHash": "9568c7c03973",
    "startedAt": "2026-11-22T12:00:00Z",
    "uptimeSeconds": 3720.0,
    "open": 3,
    "stopsWithin": None,
    "lastReload": None,
    "listeners": [
        {
            "name": "public",
            "bind": "0.0.0.0:6443",
            "address": "0.0.0.0:6443",
            "serves": "API",
            "accepting": True,
            "handshakes": 1,
            "connections": {"HTTP/1.1": 2, "HTTP/2.0": 5},
            "requests": {"HTTP/1.1": 1, "HTTP/2.0": 2},
            "protection": {},
            "limits": {"connections": 20000},
        }
    ],
    "servers": [
        {
            "name": "east",
            "serverNames": ["east.example.com"],
            "default": False,
            "listeners": ["public"],
            "backend": {"cluster": "east"},
            "requestsTotal": 900,
            "errorsTotal": 3,
            "refusedTotal": 7,
            "requestsPerSecond": 1.5,
            "p99Seconds": 0.031,
            "inFlight": 2,
        },
        {
            "name": "fleet",
            "serverNames": [],
            "default": True,
            "listeners": ["public"],
            "backend": {"aggregate": "fleet"},
            "requestsTotal": 100,
            "errorsTotal": 0,
            "refusedTotal": 0,
            "requestsPerSecond": 0.0,
            "p99Seconds": None,
            "inFlight": 1,
        },
    ],
    "clusters": [
        {
            "name": "east",
            "connections": {"HTTP/1.1": 0, "HTTP/2.0": 4},
            "requests": {"HTTP/1.1": 0, "HTTP/2.0": 2},
            "requestsTotal": 900,
            "errorsTotal": 3,
            "refusedTotal": 7,
            "endpoints": [ENDPOINT, _SECOND],
            "credentials": {"kind": "tokenFile", "identity": "Impersonate", "ready": True},
            "rightsMissing": [],
        }
    ],
    "aggregates": [
        {
            "name": "fleet",
            "reflectors": [REFLECTOR],
            "reflectorCounts": {"synced": 1},
            "leftOut": [],
            "objects": 17,
            "bytes": 30_000,
            "watchers": 4,
            "queuedBytes": 0,
        }
    ],
    "serviceCaches": {"reflectors": [], "reflectorCounts": {"synced": 4}, "objects": 20, "bytes": 9000},
    "serviceEndpoints": [
        {
            "cluster": "east",
            "backends": 3,
            "unknown": 0,
            "stale": 0,
            "ready": 12,
            "terminating": 1,
            "problems": 0,
            "problemBackends": [],
        }
    ],
    "apiServices": [
        {
            "name": "v1beta1.metrics.k8s.io",
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "cluster": "metrics",
            "usedBy": ["web"],
            "available": "True",
            "reason": "Passed",
            "message": "all checks passed",
            "since": "2026-11-20T11:00:00Z",
        }
    ],
    "ingresses": [INGRESS],
    "ingressServices": [INGRESS_SERVICE],
    "exports": [EXPORT],
    "exportTargets": [EXPORT_TARGET],
    "exportProblems": [],
    "flowControls": [LIMIT],
    "certificates": [CERTIFICATE],
    "processes": [PROCESS],
    "reviews": {"waiting": 0, "running": 0, "reviewers": []},
    "refusals": {
        "seconds": 60.0,
        "requests": 90,
        "refused": 6,
        "kinds": [{"code": "403", "by": "authorizer", "requests": 6, "requestsTotal": 7}],
    },
    "senders": SENDERS,
    "caches": {"tokens": 0, "decisions": 0},
    "totals": {
        "requests": 1000,
        "errors": 3,
        "refused": 7,
        "bytes": 1_000_000,
        "durations": [100, 800, 90, 10, 0],
        "durationBounds": BOUNDS,
    },
    "history": {
        "stepSeconds": 5.0,
        "requestsPerSecond": [10.0, 20.0],
        "errorsPerSecond": [0.0, 1.0],
        "bytesPerSecond": [1000.0, 3000.0],
        "p99Seconds": [None, 0.05],
    },
}


def document(**changes: Any) -> dict[str, Any]:
    """Return a document of a daemon that is well, with some keys changed."""
    return {**copy.deepcopy(_DOCUMENT), **changes}


class StandIn:
    """Answers `status` on a control socket; its configuration file names that socket."""

    def __init__(self, folder: Path, answer: Callable[[int], Mapping[str, Any]]) -> None:
        """`answer` returns the document of the first, second … request."""
        self.file = folder / "mcproxy.yaml"
        self.file.write_text("daemon: {controlSocket: control.sock}\n", encoding="utf-8")
        self.asked = 0
        self._path = folder / "control.sock"
        self._answer = answer
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self._path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            # Whoever asks may be ended before the answer: what this thread raised would fail a test.
            with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
                if lines.readline():
                    self.asked += 1
                    found = {"file": str(self.file), **self._answer(self.asked)}
                    connection.sendall(json.dumps({**found, "file": str(self.file)}).encode() + b"\n")

    def close(self) -> None:
        """Be gone, as a daemon that has ended."""
        if self._thread.is_alive():
            self._listening.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._listening.close()
            os.unlink(self._path)

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
