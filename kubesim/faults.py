"""Faults on demand: latency, silence, resets and wrong responses, for the requests that a test selects.

A `Fault` has the conditions of the requests that it applies to (method, path prefixes, endpoint, count) and its effect.
Latency delays the handler's response; the others replace it without calling a handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
HTTP2_KINDS = frozenset({"goaway", "refuseStream", "resetStream", "silentConnection"})
"""The kinds of faults for HTTP/2 only; they do not apply to requests over HTTP/1.1."""
KINDS = HTTP2_KINDS | frozenset(
    {
        "latency",
        "blackHole",
        "status",
        "unhealthy",
        "resetBeforeHead",
        "resetMidHead",
        "resetMidBody",
        "resetMidChunk",
        "longContentLength",
        "garbage",
        "raw",
    }
)
"""The kinds of faults; `request.fault_injection` implements them, `server.http2_connection` those of HTTP/2."""


class FaultError(ValueError):
    """The description of a fault is invalid; the message says why."""


@dataclass
class Fault:
    """A fault and the requests that it applies to.

    kind:
      latency             wait `seconds`, then answer as usual
      blackHole           read the request and never answer (until the fault is removed: then the connection is reset)
      status              answer `code`; `text` as text/plain, else a Status object; `retryAfter` seconds if not 0
                          (429 without `text` is that of flow control: its text, and Retry-After 1 if not said)
      unhealthy           status 500 for /healthz, /livez and /readyz
      resetBeforeHead     reset instead of an answer
      resetMidHead        reset within the response head
      resetMidBody        reset in a body with Content-Length
      resetMidChunk       reset within a chunk
      longContentLength   a Content-Length that is larger than the body, then close
      garbage             bytes that are not HTTP, then close
      raw                 `raw` (base64) instead of a response, then `after`: close or reset

    Over HTTP/2 a reset or an early close is RST_STREAM with INTERNAL_ERROR. Of HTTP/2 alone (`errorCode` as in
    RFC 9113, section 7; a handler sees nothing of what is unprocessed, and nor does the audit log):
      goaway              GOAWAY with `errorCode` (NO_ERROR): the request is the last that is processed or, if
                          `unprocessed`, it and later ones are not; the connection closes after the last response
      refuseStream        RST_STREAM with `errorCode` (REFUSED_STREAM) instead of an answer, unprocessed
      resetStream         answer as usual, but RST_STREAM with `errorCode` (INTERNAL_ERROR) after `bytes` of content
      silentConnection    from this request on the connection is neither read nor written, PING neither, and not closed,
                          until the fault is removed: then it continues
    """

    kind: str
    methods: tuple[str, ...] = ()
    """Empty: all."""
    paths: tuple[str, ...] = ()
    """Prefixes of the raw path; empty: all."""
    endpoint: int | None = None
    count: int | None = None
    """The number of requests that it still applies to; None: no limit."""
    skip: int = 0
    """The number of matching requests that pass first."""
    seconds: float = 0.0
    bytes: int = 0
    code: int = 500
    text: str | None = None
    retryAfter: int = 0
    raw: str = ""
    after: str = "close"
    errorCode: int | None = None
    """None: the default of the kind."""
    unprocessed: bool = False
    ident: int = 0
    removed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fault:
        """Parse the control API's JSON. Raises FaultError for unknown keys or kinds."""
        known = {item.name for item in fields(cls)} - {"ident", "removed"}
        if unknown := sorted(set(data) - known):
            raise FaultError(f"unknown keys: {', '.join(unknown)}")
        if data.get("kind") not in KINDS:
            raise FaultError(f"kind must be one of {', '.join(sorted(KINDS))}")
        values = dict(data)
        for name in ("methods", "paths"):
            value = values.get(name, ())
            values[name] = (value,) if isinstance(value, str) else tuple(value)
        if values["kind"] == "unhealthy" and not values["paths"]:
            values["paths"] = HEALTH_PATHS
        return cls(**values)

    def matches(self, method: str, path: str, endpoint: int) -> bool:
        return (
            (not self.methods or method in self.methods)
            and (not self.paths or path.startswith(self.paths))
            and self.endpoint in (None, endpoint)
        )


class Faults:
    """The active faults of one cluster; the first that matches a request is applied."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._used_up: list[Fault] = []
        self._ident = 0
        self._hung: dict[int, asyncio.Event] = {}

    def add(self, fault: Fault) -> int:
        """Activate a fault; return its identity for `remove`."""
        self._ident += 1
        fault.ident = self._ident
        self._faults.append(fault)
        return fault.ident

    def remove(self, ident: int | None = None) -> None:
        """Deactivate one fault, or all."""
        for fault in [fault for fault in self._used_up + self._faults if ident in (None, fault.ident)]:
            fault.removed.set()
        self._faults = [fault for fault in self._faults if not fault.removed.is_set()]
        self._used_up = [fault for fault in self._used_up if not fault.removed.is_set()]

    def active(self) -> list[Fault]:
        return list(self._faults)

    def hang(self, endpoint: int) -> None:
        """Make the requests of an endpoint wait until `resume`."""
        self._hung.setdefault(endpoint, asyncio.Event())

    def resume(self, endpoint: int) -> None:
        """Let waiting requests continue."""
        event = self._hung.pop(endpoint, None)
        if event is not None:
            event.set()

    def hung(self, endpoint: int) -> asyncio.Event | None:
        """Return the event that ends the waiting of an endpoint's requests; None if the endpoint does not hang."""
        return self._hung.get(endpoint)

    def pick(self, method: str, path: str, endpoint: int, *, http2: bool = False) -> Fault | None:
        """Return the fault for a request, counted as used, or None; `http2`: of HTTP2_KINDS, else of the others."""
        for fault in self._faults:
            if (fault.kind in HTTP2_KINDS) is not http2 or not fault.matches(method, path, endpoint):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.count is not None:
                fault.count -= 1
                if fault.count <= 0:
                    self._faults.remove(fault)
                    self._used_up.append(fault)
            return fault
        return None
