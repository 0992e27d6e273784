"""Starting while another daemon with the same control socket shuts down: wait for it instead of failing.

The other daemon keeps its listeners and its control socket until its tunnels are done, which may take `drainTimeout`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.daemon.control.control_socket import ControlSocketInUse, is_permitted, peer_uid

log = Logger(__name__)

_POLL = 0.1  # seconds between two queries
_QUERY_TIMEOUT = 5.0  # seconds
_MAX_ANSWER = 64 * 1024


async def wait_for_predecessor(reactor: Any, path: str) -> None:
    """Return when the daemon that listens on the control socket `path` has freed it, if it is shutting down.

    Raises `ControlSocketInUse` if it is not, or does not answer, or does not end within the time that it announced.
    """
    deadline: float | None = None
    hung_up = False
    while (status := await status_of(reactor, path)) is not None:
        if not status and not hung_up:  # it closed the socket with this connection in the queue: query once more
            hung_up = True
            await deferLater(reactor, _POLL)
            continue
        hung_up = False
        if status.get("state") != "stopping":
            raise ControlSocketInUse(path, status.get("pid"))
        now = reactor.seconds()
        if deadline is None:
            seconds = status.get("stopsWithin")
            deadline = now + (seconds if isinstance(seconds, int | float) else 0.0)
            log.info(
                "waiting for the previous daemon to shut down",
                event="predecessor_awaited",
                pid=status.get("pid"),
                socket=path,
                atMost=seconds,
            )
        if now > deadline:
            raise ControlSocketInUse(path, status.get("pid"))
        await deferLater(reactor, _POLL)


async def status_of(
    reactor: Any, path: str, uid_of: Callable[[socket.socket], int] = peer_uid
) -> dict[str, Any] | None:
    """Return the status of the daemon at `path`; None if no process listens there any more, {} without an answer.

    Only root and this process's user are asked: whatever another one listens for there, it is no daemon of ours.
    """
    factory = _StatusFactory(uid_of)
    reactor.connectUNIX(path, factory, timeout=_QUERY_TIMEOUT)
    try:
        line = await factory.line.addTimeout(_QUERY_TIMEOUT, reactor)
    except ConnectError:
        return None
    except Exception:  # a timeout, or it closed the connection
        return {}
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class _StatusQuery(Protocol):
    def __init__(self, line: Deferred[bytes], uid_of: Callable[[socket.socket], int]) -> None:
        self._line = line
        self._uid_of = uid_of
        self._received = b""

    def connectionMade(self) -> None:
        assert self.transport is not None
        uid = self._uid_of(self.transport.socket)  # type: ignore[attr-defined]
        if not is_permitted(uid, os.geteuid()):
            log.debug(
                "the control socket belongs to another user", event="control_socket_foreign", uid=uid
            )  # orphans poll continuously
            self.transport.loseConnection()
            return
        self.transport.write(b'{"command": "status", "brief": true}\n')

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        if b"\n" in self._received or len(self._received) > _MAX_ANSWER:
            assert self.transport is not None
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._line.called:
            self._line.callback(self._received)


class _StatusFactory(ClientFactory):
    noisy = False

    def __init__(self, uid_of: Callable[[socket.socket], int]) -> None:
        self.line: Deferred[bytes] = Deferred()
        self._uid_of = uid_of

    def buildProtocol(self, addr: IAddress | None) -> _StatusQuery:
        return _StatusQuery(self.line, self._uid_of)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.line.errback(reason)
