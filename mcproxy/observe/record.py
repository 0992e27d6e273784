"""The one hook of the request path: what happened to a request, handed over once, when it is finished.

The pipeline makes an `AccessRecord` when a response, watch or tunnel has ended and gives it to its `Recorder`. The
access log is one recorder; metrics and audit become further ones without a change in the pipeline.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class AccessRecord(NamedTuple):
    """One finished request. An empty string or None means "not known" and is left out of the log.

    A named tuple, not a dataclass: it is made for every request, and a frozen dataclass of this size costs four times
    as much to make. Build it by keyword.
    """

    time: float
    """When the request's head had arrived; seconds since the epoch."""
    client: str
    """Address of the client, without port."""
    method: str
    uri: str
    """Request target as received; the writers mask secrets in its query."""
    status: int
    """Status code sent to the client; 0 when the client was gone before one was sent."""
    reason: str = "ok"
    """How it ended: "ok", else one word: client_closed, refused, upstream_unreachable, upstream_timeout, …"""
    server: str = ""
    cluster: str = ""
    endpoint: str = ""
    user: str = ""
    """Who sent it."""
    impersonated: str = ""
    """Who it ran as, if the client asked for somebody else."""
    policy: str = ""
    """The dispatch policy that applied."""
    verb: str = ""
    """Kubernetes verb (list, watch, …)."""
    resource: str = ""
    """Kubernetes resource with its group and subresource (deployments.apps/scale)."""
    request_id: str = ""
    """The Audit-ID, which the upstream's audit log has too."""
    user_agent: str = ""
    bytes_in: int = 0
    """Body bytes from the client (tunnel bytes after an upgrade)."""
    bytes_out: int = 0
    """Body bytes to the client (tunnel bytes after an upgrade)."""
    first_byte: float | None = None
    """Seconds from the head's arrival until the first byte of the response was sent."""
    total: float = 0.0
    """Seconds from the head's arrival to the end."""
    upgraded: bool = False
    """The connection became a tunnel (exec, attach, port-forward)."""


class Recorder(Protocol):
    """Takes finished requests. It is called on the reactor for every request: it must be quick and must not raise."""

    def finished(self, record: AccessRecord) -> None:
        """Take the record of one request that has ended."""
