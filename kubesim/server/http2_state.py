"""The shared state of the HTTP/2 connections of one endpoint: settings, faults, counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kubesim.faults import Fault, Faults
from kubesim.server.http2_stream import RequestHead

MAX_ERRORS_KEPT = 100


@dataclass(frozen=True)
class HTTP2Settings:
    """The settings announced to clients; the defaults are kube-apiserver's (windows in bytes)."""

    max_concurrent_streams: int = 250
    initial_window: int = 256 << 10
    connection_window: int = 250 * (256 << 10)


@dataclass
class EndpointState:
    """The counts are of all connections since the start."""

    endpoint: int
    faults: Faults
    settings: HTTP2Settings
    connections_seen: int = 0
    streams_seen: int = 0
    most_streams: int = 0
    """The most streams that were open at once on one connection."""
    refused: int = 0
    """Streams refused with RST_STREAM, because of a fault or beyond the limit."""
    over_limit: int = 0
    """Refused streams that a client began although it had acknowledged the limit."""
    resets_received: int = 0
    pings_received: int = 0
    protocol_errors: list[str] = field(default_factory=list)

    def note_protocol_error(self, text: str) -> None:
        """Record a client's violation of the protocol."""
        if len(self.protocol_errors) < MAX_ERRORS_KEPT:
            self.protocol_errors.append(text)

    def pick_fault(self, head: RequestHead) -> Fault | None:
        """Return the fault of HTTP/2 for a request."""
        method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
        return self.faults.pick(method, target, self.endpoint, http2=True)

    def as_dict(self) -> dict[str, Any]:
        return {
            "connectionsSeen": self.connections_seen,
            "streamsSeen": self.streams_seen,
            "mostStreams": self.most_streams,
            "refused": self.refused,
            "overLimit": self.over_limit,
            "resetsReceived": self.resets_received,
            "pingsReceived": self.pings_received,
            "protocolErrors": self.protocol_errors,
        }
