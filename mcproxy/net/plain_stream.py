"""Streams without TLS over TCP and unix sockets: listeners on loopback, http:// endpoints, the control socket."""

from __future__ import annotations

import os
import socket
from typing import Final

from twisted.internet.error import ConnectionLost

from mcproxy.net.failures import failure
from mcproxy.net.socket_stream import BLOCKED, BROKEN, READ_BUDGET, SocketStream

_CHUNK: Final = 64 * 1024


class PlainStream(SocketStream):
    """A stream without TLS."""

    __slots__ = ()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data)
        except (BlockingIOError, InterruptedError):
            return BLOCKED
        except OSError as error:
            self._note_broken(os.strerror(error.errno or 0))
            return BROKEN

    def doRead(self) -> None:
        budget = READ_BUDGET
        while budget > 0 and self._reading:
            try:
                data = self.socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._close(failure(ConnectionLost(os.strerror(error.errno or 0))))
                return
            if not data:
                self._peer_ended(clean=True)
                return
            if not self.disconnecting and self.protocol is not None:
                self.protocol.dataReceived(data)
            if len(data) < _CHUNK:
                return
            budget -= len(data)

    def _shut(self) -> bool:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer has reset the connection, which the next read reports
        return True
