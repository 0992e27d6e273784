"""The interface of a destination of a request: a pod, or a service behind an API server."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from twisted.internet.defer import Deferred

from mcproxy.http.client_stream import ClientStream
from mcproxy.net.connect_errors import ConnectFailed

Sent = tuple[bytes, bytes, tuple[bytes, ...]]
"""A request's head: path and query, authority (the client's Host), blocks of end-to-end fields."""


class TargetGone(ConnectFailed):
    """The target accepts no more requests; this does not count as its failure."""


class Target(Protocol):
    """A destination of requests. Only `IngressForward` changes `in_flight`: up by 1 for an attempt, down at its end."""

    in_flight: int

    @property
    def takes_requests(self) -> bool:
        """Whether the target accepts a further request."""
        ...

    def take(self, *, upgrade: bool) -> ClientStream | None:
        """Return a stream on an open connection, to be used at once, or None.

        `upgrade`: the request must go over HTTP/1.1.
        """

    def open(self, *, upgrade: bool) -> Deferred[ClientStream]:
        """Return a stream on a new connection, or on one that becomes free.

        The Deferred fails with `net.connect_errors.ConnectError` before anything is sent. Cancel it if the client has
        disconnected.
        """
        ...


# -- outcomes -------------------------------------------------------------------------------------------------
#
# The outcomes of a request that is forwarded to an endpoint of an ingress, and the response to the client.


class AttemptOutcome(Enum):
    """The result of one attempt to forward a request to a target."""

    ANSWERED = "answered"
    """The response is complete, or the connection became a tunnel."""
    CONNECT_FAILED = "connect_failed"
    """No connection was made."""
    REFUSED = "refused"
    """The target has not processed the request (RFC 9113 8.7)."""
    UNANSWERED = "unanswered"
    """The connection or the stream ended before the response began."""
    TIMED_OUT = "timed_out"
    """The response did not begin in time."""
    INVALID = "invalid"
    """The target has sent an invalid response."""
    REJECTED = "rejected"
    """The response had a status of `retryOn`, and the request was sent to another target."""
    BROKEN = "broken"
    """The connection or the stream ended before the end of the response."""
    CANCELLED = "cancelled"
    """The client went away."""


class Failure(Enum):
    """Why no target has answered a request: the status code for the client, and the reason for the access log."""

    NO_ENDPOINT = 503, "no_endpoint"
    MISSING = 500, "no_endpoint"
    UNREACHABLE = 502, "upstream_unreachable"
    CONNECT_TIMEOUT = 504, "upstream_unreachable"
    REFUSED = 503, "upstream_refused"
    UNANSWERED = 502, "upstream_closed"
    INVALID = 502, "upstream_malformed"
    TIMED_OUT = 504, "upstream_timeout"

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
