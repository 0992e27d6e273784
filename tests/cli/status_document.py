"""A status document as a daemon answers it, for the commands that show it; and a stand-in for that daemon."""

from __future__ import annotations

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

_DOCUMENT: dict[str, Any] = {
    "ok": True,
    "version": "0.1.0",
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
            "objects": 17,
            "bytes": 30_000,
            "watchers": 4,
            "queuedBytes": 0,
        }
    ],
    "flowControls": [LIMIT],
    "certificates": [CERTIFICATE],
    "processes": [PROCESS],
    "reviews": {"waiting": 0, "running": 0, "reviewers": []},
    "caches": {"tokens": 0, "decisions": 0},
    "totals": {
        "requests": 1000,
        "errors": 3,
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
            with connection, connection.makefile("rb") as lines:
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
