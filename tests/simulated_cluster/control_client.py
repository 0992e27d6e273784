"""A blocking client of the control API, on http.client alone; a Twisted test calls it with `deferToThread`, or just
blocks.

The simulated cluster runs in another process, so a test that blocks for the millisecond a call takes stops nothing
but itself.
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
    """The control API refused; the text says why."""


class ControlClient:
    """Talks to one simulated cluster's control API. Each call opens a connection, so there is nothing to close."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
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
        """The sequence number of the newest audit record, to ask later for what came after."""
        return int(self._json("GET", "/audit", {"since": 1 << 60})["last"])

    def audit(self, since: int = 0, *, path: str = "", method: str = "") -> list[JSONDict]:
        """The requests that reached the cluster after `since`, oldest first, as `audit.Record.as_dict` gives them."""
        query = {"since": since, "path": path or None, "method": method or None}
        records: list[JSONDict] = self._json("GET", "/audit", query)["records"]
        for record in records:
            encoded = record.pop("body_base64")
            record["body"] = None if encoded is None else base64.b64decode(encoded)
        return records

    def forget(self) -> None:
        """Drops all audit records."""
        self._json("DELETE", "/audit")

    def fault(self, kind: str, **settings: Any) -> int:
        """Switches a fault on (`faults.Fault` lists kinds and settings); gives its identity."""
        return int(self._json("POST", "/faults", body={"kind": kind, **settings})["id"])

    def faults(self) -> list[JSONDict]:
        """The faults that are on."""
        found: list[JSONDict] = self._json("GET", "/faults")["faults"]
        return found

    def clear_faults(self, ident: int | None = None) -> None:
        """Switches one fault off, or all."""
        self._json("DELETE", "/faults", {"id": ident})

    def compact(self, revision: int | None = None) -> int:
        """Forgets the revisions before `revision` (all, by default); gives the current one."""
        return int(self._json("POST", "/compact", {"revision": revision})["revision"])

    def create(self, items: Iterable[Mapping[str, Any]]) -> int:
        """Creates objects of any kinds; gives the revision after them."""
        return int(self._json("POST", "/objects", body={"items": list(items)})["revision"])

    def stats(self) -> JSONDict:
        """connections, connectionsSeen, inFlight, watches, requests, objects, revision, endpoints."""
        return self._json("GET", "/stats")

    def append_log(self, namespace: str, pod: str, text: str, *, container: str = "") -> None:
        """Adds lines to a container's log; followers get them at once."""
        query = {"namespace": namespace, "pod": pod, "container": container or None}
        self._call("POST", "/logs", query, text.encode())

    def read_file(self, namespace: str, pod: str, path: str, *, container: str = "") -> bytes:
        """A file of a container."""
        query = {"namespace": namespace, "pod": pod, "container": container or None, "path": path}
        return self._call("GET", "/files", query)

    def write_file(self, namespace: str, pod: str, path: str, data: bytes, *, container: str = "") -> None:
        """Puts a file into a container."""
        query = {"namespace": namespace, "pod": pod, "container": container or None, "path": path}
        self._call("POST", "/files", query, data)

    def stop_endpoint(self, index: int = 0, *, reset: bool = True) -> JSONDict:
        """Connections to this endpoint are refused from now on; `reset` breaks the open ones."""
        return self._json("POST", f"/endpoints/{index}/stop", {"reset": str(reset).lower()})

    def start_endpoint(self, index: int = 0, *, starting: float = 0.0) -> JSONDict:
        """It listens again, on the same port, and answers 403 for `starting` seconds, or until `finish_starting`."""
        return self._json("POST", f"/endpoints/{index}/start", {"starting": starting})

    def finish_starting(self, index: int = 0) -> JSONDict:
        """The endpoint has read the roles and authorizes from now on."""
        return self._json("POST", f"/endpoints/{index}/finish")

    def hang_endpoint(self, index: int = 0) -> JSONDict:
        """TCP connections are taken and nothing is answered."""
        return self._json("POST", f"/endpoints/{index}/hang")

    def resume_endpoint(self, index: int = 0) -> JSONDict:
        """What waited goes on."""
        return self._json("POST", f"/endpoints/{index}/resume")

    def reset_connections(self, index: int = 0) -> JSONDict:
        """Breaks all open connections of an endpoint."""
        return self._json("POST", f"/endpoints/{index}/reset")


def header_values(record: Mapping[str, Any], name: str) -> list[str]:
    """All values of a header in an audit record, in the order received; names compare without case."""
    return [value for other, value in record["headers"] if other.lower() == name.lower()]
