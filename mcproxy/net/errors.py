"""Why a connection could not be made, as our own types, and the one place where foreign failures become them.

`cause` is a short sentence for an operator's log line; it names addresses and certificates, never secrets.
"""

from __future__ import annotations

import errno
import os

from OpenSSL import SSL


class ConnectError(Exception):
    """A connection was not made; nothing was sent over it."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class ConnectionRefused(ConnectError):
    """Nobody listens there."""


class ConnectTimeout(ConnectError):
    """The time ran out, in DNS, TCP or TLS; the cause says which."""


class DNSError(ConnectError):
    """The host name has no address."""


class TLSError(ConnectError):
    """The handshake failed, or the certificate is not acceptable."""


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
    """Return the error for a handshake with `where` that OpenSSL gave up."""
    return TLSError(f"TLS handshake with {where} failed: {tls_reason(error)}")


def tls_reason(error: BaseException) -> str:
    """Say in words what OpenSSL reported: the reasons of its error queue, or the system's error.

    Never more than a line; meant for logs, as OpenSSL's words are part of what a peer can choose.
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
    return "; ".join(dict.fromkeys(reasons)) or type(error).__name__
