"""The kinds of requests, by how one in flight is ended before it is done. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


class RequestKind(enum.Enum):
    """The values are the words in which a shutdown counts what it has cut."""

    SHORT = "requests"
    """Ends by itself, soon: everything but the following. Also streams below `proxy`."""
    WATCH = "watches"
    """Is resumed by its client after a clean end."""
    LOG = "logs"
    """A followed log: ends only with its container, and cannot be resumed."""
    STREAM = "streams"
    """A request to an ingress that lasts: a download, a stream of events. It cannot be resumed."""
    TUNNEL = "tunnels"
    """exec, attach, port-forward, and every connection that was upgraded: cannot be resumed."""

    @property
    def resumable(self) -> bool:
        return self is RequestKind.SHORT or self is RequestKind.WATCH


def kind_of(info: RequestInfo | None) -> RequestKind:
    """Return the kind of a request that is not upgraded yet."""
    if info is None or not info.long_running:
        return RequestKind.SHORT
    if info.verb == "watch":
        return RequestKind.WATCH
    if info.subresource == "log":
        return RequestKind.LOG
    return RequestKind.TUNNEL if info.subresource in STREAM_SUBRESOURCES else RequestKind.SHORT
