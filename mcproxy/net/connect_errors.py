"""The errors of outgoing connections, and the conversion of system and OpenSSL errors to them.

`cause` is a short phrase for the operator's log. It contains addresses and certificate names, never secrets.
"""

from __future__ import annotations

import errno
import os

from OpenSSL import SSL

from mcproxy.net import handshake_errors
from mcproxy.net.causes import Cause, CauseCode

_CODES = {
    errno.EHOSTUNREACH: CauseCode.UNREACHABLE,
    errno.ENETUNREACH: CauseCode.UNREACHABLE,
    errno.EHOSTDOWN: CauseCode.UNREACHABLE,
    errno.EMFILE: CauseCode.TOO_MANY_FILES,
    errno.ENFILE: CauseCode.TOO_MANY_FILES,
    errno.EADDRNOTAVAIL: CauseCode.NO_FREE_PORT,
    errno.EACCES: CauseCode.NOT_PERMITTED,
    errno.EPERM: CauseCode.NOT_PERMITTED,
}
_CODES_OF_SOCKETS = {errno.EACCES: CauseCode.SOCKET_NOT_PERMITTED, errno.ENOENT: CauseCode.NO_SOCKET}
_UNTRUSTED = (
    ("self-signed certificate", CauseCode.UNKNOWN_AUTHORITY),
    ("unable to get ", CauseCode.UNKNOWN_AUTHORITY),
    ("unable to verify ", CauseCode.UNKNOWN_AUTHORITY),
    ("certificate not trusted", CauseCode.UNKNOWN_AUTHORITY),
    ("certificate has expired", CauseCode.EXPIRED),
    ("certificate is not yet valid", CauseCode.NOT_YET_VALID),
    ("certificate revoked", CauseCode.REVOKED),
    ("unsuitable certificate purpose", CauseCode.WRONG_PURPOSE),
    ("certificate signature failure", CauseCode.WRONG_SIGNATURE),
)


class ConnectError(Exception):
    """A connection failed before the protocol sent anything.

    `cause` is a `causes.Cause` if it has a code. `recorded` is whether the endpoint has counted the failure. A failure
    is counted once, although several requests can have waited for the connection.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.recorded = False


class ConnectionRefused(ConnectError):
    """Nothing listens on the address."""

    def __init__(self, cause: str) -> None:
        super().__init__(Cause(cause, CauseCode.REFUSED))


class ConnectTimeout(ConnectError):
    """DNS, TCP or TLS took too long; the cause names the step."""


class DNSError(ConnectError):
    """The host name has no address."""

    def __init__(self, cause: str) -> None:
        super().__init__(Cause(cause, CauseCode.NO_ADDRESS))


class TLSError(ConnectError):
    """The handshake failed, or the certificate was rejected."""


class ConnectFailed(ConnectError):
    """Any other failure, such as no route, no free socket, or no such file."""


def from_errno(number: int, where: str) -> ConnectError:
    """Return the error for a failed connect(2) to `where` ("10.0.0.1:6443", "unix:/run/x.sock")."""
    if number == errno.ECONNREFUSED:
        return ConnectionRefused(f"{where} refused the connection")
    if number == errno.ETIMEDOUT:
        return ConnectTimeout(Cause(f"{where} did not answer", CauseCode.NO_ANSWER_TO_CONNECT))
    codes = {**_CODES, **_CODES_OF_SOCKETS} if where.startswith("unix:") else _CODES
    code = codes.get(number, CauseCode.NOT_CONNECTED)
    return ConnectFailed(Cause(f"cannot connect to {where}: {os.strerror(number)}", code))


def from_handshake(error: BaseException, where: str) -> TLSError:
    """Return the error for a failed handshake with `where`."""
    cause = handshake_errors.of_server(tls_reason(error))
    return TLSError(Cause(f"TLS handshake with {where} failed: {cause}", cause.code))


def untrusted(where: str, reason: str) -> TLSError:
    """Return the error for a server whose chain OpenSSL does not trust for `reason` (x509_txt.c)."""
    code = next((code for begin, code in _UNTRUSTED if reason.startswith(begin)), CauseCode.UNTRUSTED)
    return TLSError(Cause(f"the certificate of {where} is not trusted: {reason}", code))


def tls_reason(error: BaseException) -> str:
    """Return the reasons in OpenSSL's error queue, or the system's error, as one line.

    The text is for logs only, because a peer can choose a part of it.
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
