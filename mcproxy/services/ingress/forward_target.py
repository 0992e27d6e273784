"""The interface of a destination of a request: a pod, or a service behind an API server."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from mcproxy.http.client_stream import ClientStream
from mcproxy.net.connect_errors import ConnectFailed

Sent = tuple[bytes, bytes, tuple[bytes, ...]]
"""A request's head: path and query, authority (the client's Host), blocks of end-to-end fields."""


class TargetGone(ConnectFailed):
    """The target takes no more requests; this says nothing about whether it works."""


class Target(Protocol):
    """Where a request can be sent. `Forward` alone changes `in_flight`, one up and one down for each attempt."""

    in_flight: int

    @property
    def takes_requests(self) -> bool:
        """Whether it may get a further request."""
        ...

    def take(self, *, upgrade: bool) -> ClientStream | None:
        """Return a stream on a connection that is open, to be used at once, or None.

        `upgrade`: the request must go over HTTP/1.1.
        """

    def open(self, *, upgrade: bool) -> Deferred[ClientStream]:
        """Return a stream on a new connection, or on one that comes free.

        Fails with `net.connect_errors.ConnectError`: nothing was sent. Cancel it if the request is gone.
        """
        ...
