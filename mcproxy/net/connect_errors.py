"""The errors of outgoing connections, and the conversion of system and OpenSSL errors to them.

`cause` is a short phrase for the operator's log; it names addresses and certificates, never secrets.
"""

from __future__ import annotations

import errno
import os

from OpenSSL import SSL

from mcproxy.net import handshake_errors


class ConnectError(Exception):
    """A connection was not made; nothing was sent over it.

    `recorded`: the endpoint has counted it; several requests may have waited for the connection.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.recorded = False


class ConnectionRefused(ConnectError):
    """Nothing listens on the address."""


class ConnectTimeout(ConnectError):
    """DNS, TCP or TLS took too long; the cause says which."""


class DNSError(ConnectError):
    """The host name has no address."""


class TLSError(ConnectError):
    """The handshake failed, or the certificate was rejected."""


class ConnectFailed(ConnectError):
    """Anything else: no route, no socket left, no such file."""


def from_errno(number: int, where: str) -> ConnectError:
    """Return the error for a failed connect(2) to `where` ("10.0.0.1:6443", "unix:/run/x.sock")."""
    if number == errno.ECONNREFUSED:
        return ConnectionRefused(f"{where} refused the connection")
    if number == errno.ETIMEDOUT:
        return ConnectTimeout(f"{where} did not answer")
    return ConnectFailed(f"cannot connect to {where}: {os.strerror(number)}")


def from_handshake(error: BaseException, where: str) -> TLSError:
    """Return the error for a failed handshake with `where`."""
    return TLSError(f"TLS handshake with {where} failed: {handshake_errors.of_server(tls_reason(error))}")


def tls_reason(error: BaseException) -> str:
    """Return the reasons in OpenSSL's error queue, or the system's error, as one line.

    For logs only: a peer can choose part of it.
    """
    if isinstance(error, SSL.SysCallError):
        number = error.args[0] if error.args else -1
        if not isinstance(number, int) or number <= 0:
            return "the peer closed the connection"
        return os.strerror(number).lower()
    if isinstance(error, SSL.ZeroReturnError):
        return "the peer closed the connection"
    queue = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reasons = [str(entry[-1]) for entry in queue if entry and entry[-1]]
    return "; ".join(dict.fromkeys(reasons)) or "the TLS layer failed"
