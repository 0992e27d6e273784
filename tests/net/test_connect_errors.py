"""Foreign failures in our words."""

from __future__ import annotations

import errno

import pytest
from OpenSSL import SSL

from mcproxy.net import handshake_errors
from mcproxy.net.connect_errors import (
    ConnectError,
    ConnectFailed,
    ConnectionRefused,
    ConnectTimeout,
    TLSError,
    from_errno,
    from_handshake,
    tls_reason,
)


@pytest.mark.parametrize(
    ("number", "kind", "cause"),
    [
        (errno.ECONNREFUSED, ConnectionRefused, "10.0.0.1:6443 refused the connection"),
        (errno.ETIMEDOUT, ConnectTimeout, "10.0.0.1:6443 did not answer"),
        (errno.EHOSTUNREACH, ConnectFailed, "cannot connect to 10.0.0.1:6443: No route to host"),
    ],
)
def test_system_errors(number: int, kind: type[ConnectError], cause: str) -> None:
    error = from_errno(number, "10.0.0.1:6443")
    assert type(error) is kind
    assert error.cause == str(error) == cause


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SSL.SysCallError(-1, "Unexpected EOF"), "the peer closed the connection"),
        (SSL.SysCallError(errno.ECONNRESET, "ECONNRESET"), "connection reset by peer"),
        (SSL.ZeroReturnError(), "the peer closed the connection"),
        (SSL.Error([("SSL routines", "", "wrong version number")]), "wrong version number"),
        (SSL.Error([("x", "", "a"), ("y", "", "a"), ("z", "", "b")]), "a; b"),
        (SSL.Error([]), "the TLS layer failed"),
        (SSL.Error(), "the TLS layer failed"),
    ],
)
def test_openssl_errors(error: SSL.Error, reason: str) -> None:
    assert tls_reason(error) == reason
    made = from_handshake(error, "x:1")
    assert isinstance(made, TLSError)
    assert made.cause == f"TLS handshake with x:1 failed: {handshake_errors.of_server(reason)}"
