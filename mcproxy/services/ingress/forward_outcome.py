"""What becomes of a request that is forwarded to an endpoint of an ingress, and what its client is told then."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The result of an attempt at a target."""

    ANSWERED = "answered"
    """The response is complete, or became a tunnel."""
    CONNECT_FAILED = "connect_failed"
    """No connection was made."""
    REFUSED = "refused"
    """It has not processed the request (RFC 9113 8.7)."""
    UNANSWERED = "unanswered"
    """The connection or the stream ended before the response began."""
    TIMED_OUT = "timed_out"
    """The response did not begin in time."""
    INVALID = "invalid"
    """What came is no valid response."""
    REJECTED = "rejected"
    """The response has a status on which the request is sent to another target, and was."""
    BROKEN = "broken"
    """The connection or the stream ended within the response."""
    CANCELLED = "cancelled"
    """The client went away."""


class Failure(Enum):
    """Why a request has no response of a target: the status for the client, and the word for the access log."""

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
