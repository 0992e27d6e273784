"""A blocking client of the control API, on http.client.

A Twisted test calls it directly or by `deferToThread`: the simulated cluster runs in another process, so a call that
blocks for a millisecond blocks only the test.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

__all__ = ["ControlClient", "ControlError", "header_values"]

JSONDict = dict[str, Any]


class ControlError(Exception):
    """The control API refused; the message says why."""


class ControlClient:
    """A client of one simulated cluster's control API. Each call opens and closes a connection."""

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout = timeout

    def _call(self, method: str, path: str, query: Mapping[str, object] | None = None, body: bytes = b"") -> bytes:
        given = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout)
        try:
            connection.request(method, target, body or None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise ControlError(f"{method} {target}: {response.status} {data.decode('utf-8', 'replace')}")
        return data

    def _json(self, method: str, path: str, query: Mapping[str, object] | None = None, body: Any = None) -> JSONDict:
        data = self._call(method, path, query, b"" if body is None else json.dumps(body).encode())
        answer: JSONDict = json.loads(data)
        return answer

    def mark(self) -> int:
        """Return the sequence number of the newest audit record, for `audit(since)`."""
        return int(self._json("GET", "/audit", {"since": 1 << 60})["last"])

    def audit(self, since: int = 0, *, path: str = "", method: str = "") -> list[JSONDict]:
        """Return the requests that reached the cluster after `since`, oldest first, as `audit.Record.as_dict`."""
        query = {"since": since, "path": path or None, "method": method or None}
        records: list[JSONDict] = self._json("GET", "/audit", query)["records"]
        for record in records:
            encoded = record.pop("body_base64")
            record["body"] = None if encoded is None else base64.b64decode(encoded)
        return records

    def forget(self) -> None:
        """Drop all audit records."""
        self._json("DELETE", "/audit")

    def fault(self, kind: str, **settings: Any) -> int:
        """Activate a fault (`faults.Fault` lists kinds and settings); return its identity."""
        return int(self._json("POST", "/faults", body={"kind": kind, **settings})["id"])

    def faults(self) -> list[str]:
        """Return the kinds of the active faults."""
        kinds: list[str] = self._json("GET", "/faults")["faults"]
        return kinds

    def clear_faults(self, ident: int | None = None) -> None:
        """Deactivate one fault, or all."""
        self._json("DELETE", "/faults", {"id": ident})

    def compact(self, revision: int | None = None) -> int:
        """Compact the revisions before `revision` (all, by default); return the current one."""
        return int(self._json("POST", "/compact", {"revision": revision})["revision"])

    def snapshot(self) -> int:
        """Back up all objects; return the backup's number for `restore`."""
        return int(self._json("POST", "/snapshot")["snapshot"])

    def restore(self, snapshot: int) -> int:
        """Go back to a backup, its revision too, and reset all connections; return the revision."""
        return int(self._json("POST", "/restore", {"snapshot": snapshot})["revision"])

    def create(self, items: Iterable[Mapping[str, Any]]) -> int:
        """Create objects of any kinds; return the revision after them."""
        return int(self._json("POST", "/objects", body={"items": list(items)})["revision"])

    def stats(self) -> JSONDict:
        """Return connections, connectionsSeen, http2Connections, inFlight, watches, requests, objects, endpoints, ...

        `connections` are of both versions. With `--http2` each endpoint has `http2`: connections, connectionsSeen,
        streams (of each connection), streamsSeen, mostStreams (of one connection), refused, overLimit, resetsReceived,
        pingsReceived, protocolErrors.
        """
        return self._json("GET", "/stats")

    def append_log(self, namespace: str, pod: str, text: str, *, container: str = "") -> None:
        """Add lines to a container's log; followers get them at once."""
        query = {"namespace": namespace, "pod": pod, "container": container or None}
        self._call("POST", "/logs", query, text.encode())

    def read_file(self, namespace: str, pod: str, path: str, *, container: str = "") -> bytes:
        """Return a file of a container."""
        query = {"namespace": namespace, "pod": pod, "container": container or None, "path": path}
        return self._call("GET", "/files", query)

    def stop_endpoint(self, index: int = 0, *, reset: bool = True) -> JSONDict:
        """Refuse connections to this endpoint; `reset` ends the open ones with a TCP RST."""
        return self._json("POST", f"/endpoints/{index}/stop", {"reset": str(reset).lower()})

    def start_endpoint(self, index: int = 0, *, starting: float = 0.0) -> JSONDict:
        """Listen again on the same port, and answer 403 for `starting` seconds or until `finish_starting`."""
        return self._json("POST", f"/endpoints/{index}/start", {"starting": starting})

    def finish_starting(self, index: int = 0) -> JSONDict:
        """Let the endpoint have read the roles, so that it authorizes."""
        return self._json("POST", f"/endpoints/{index}/finish")

    def hang_endpoint(self, index: int = 0) -> JSONDict:
        """Accept TCP connections and answer nothing, on HTTP/2 connections not even PING."""
        return self._json("POST", f"/endpoints/{index}/hang")

    def resume_endpoint(self, index: int = 0) -> JSONDict:
        """Continue what waits because of `hang_endpoint`."""
        return self._json("POST", f"/endpoints/{index}/resume")

    def goaway(self, index: int = 0, *, code: int = 0, last: int | None = None) -> JSONDict:
        """Send GOAWAY on all HTTP/2 connections; streams above `last` (default: the last begun) are dropped."""
        return self._json("POST", f"/endpoints/{index}/goaway", {"code": code, "last": last})

    def http2(
        self,
        index: int = 0,
        *,
        offer: bool | None = None,
        max_concurrent_streams: int | None = None,
        initial_window: int | None = None,
    ) -> JSONDict:
        """Offer HTTP/2 to new connections or not; announce other settings on open and new ones."""
        query = {
            "offer": None if offer is None else str(offer).lower(),
            "maxConcurrentStreams": max_concurrent_streams,
            "initialWindow": initial_window,
        }
        return self._json("POST", f"/endpoints/{index}/http2", query)

    def http2_stats(self, index: int = 0) -> JSONDict:
        """Return what an endpoint counts of HTTP/2 (see `stats`)."""
        found: JSONDict = self.stats()["endpoints"][index]["http2"]
        return found

    def reset_connections(self, index: int = 0) -> JSONDict:
        """End all open connections of an endpoint with a TCP RST."""
        return self._json("POST", f"/endpoints/{index}/reset")


OWN_PATHS = ("/readyz", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")


def is_proxys_own(record: Mapping[str, Any]) -> bool:
    """Return whether an audit record is of a health check or a check of the proxy's rights, and of no test's client."""
    return record["path"].partition("?")[0] in OWN_PATHS


def header_values(record: Mapping[str, Any], name: str) -> list[str]:
    """Return all values of a header in an audit record, in order; names compare without case."""
    return [value for other, value in record["headers"] if other.lower() == name.lower()]
