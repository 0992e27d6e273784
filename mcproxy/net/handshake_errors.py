"""Explains OpenSSL's errors of failed handshakes, with clients and with servers. Pure.

The reasons are from OpenSSL's ssl_err.c; 1.1 and 3.x write "sslv3 alert …", 4.0 writes "tls alert …". Reasons without
an entry are returned unchanged, because each is an English phrase without text from the peer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from mcproxy.net.causes import Cause, CauseCode

T = TypeVar("T")

_ALERT = re.compile(r"(?:tls|ssl|ssl/tls|sslv3|tlsv1|tlsv13)(?: alert)? (?P<alert>[a-z ]+)")
_CLOSED = ("unexpected eof while reading", "the peer closed the connection")
_NOT_TLS = (
    "wrong version number",
    "packet length too long",
    "record length mismatch",
    "record too small",
    "unknown protocol",
    "invalid record type",
    "bad record type",
    "unexpected message",
    "length too short",
    "bad packet length",
    "data length too long",
    "record layer failure",
    "bad record mac",
    "decryption failed or bad record mac",
)
_VERSION = ("unsupported protocol", "version too low", "version too high", "no protocols available", "protocol version")
_CIPHER = (
    "no shared cipher",
    "no shared signature algorithms",
    "no suitable key share",
    "no suitable signature algorithm",
)

# Alerts about a certificate: RFC 8446 6.2.
_CERTIFICATE = (
    "bad certificate",
    "unsupported certificate",
    "certificate revoked",
    "certificate expired",
    "certificate unknown",
    "unknown ca",
    "access denied",
)

_SEE_CLIENT = "see what the client is"
_CA = "give the client the CA of the listener's certificate (mcproxy kubeconfig --ca)"
_NAME = "see that the certificate has the name that the client uses"
_PROTOCOLS = "add the client's protocol to protocols of the listener"

# Cause and remedy by reason or alert.
_CLIENT: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(_CLOSED, ("the client closed the connection during the handshake", _SEE_CLIENT)),
    **dict.fromkeys(
        _NOT_TLS,
        (
            "the client does not send TLS",
            "see what it is; a load balancer with PROXY headers belongs in proxyProtocol.from",
        ),
    ),
    **dict.fromkeys(
        _VERSION,
        (
            "the client offers no version of TLS that the listener accepts",
            "update the client; tls.minVersion of the listener is the oldest accepted",
        ),
    ),
    **dict.fromkeys(
        _CIPHER, ("the client and the listener have no cipher or signature algorithm in common", _SEE_CLIENT)
    ),
    "http request": ("the client speaks HTTP without TLS", "let the client use https://"),
    "https proxy request": (
        "the client takes the listener for an HTTP proxy (CONNECT)",
        "take the listener's address out of the client's HTTPS_PROXY",
    ),
    "no application protocol": ("the client and the listener have no protocol in common (ALPN)", _PROTOCOLS),
    "connection reset by peer": ("the client reset the connection during the handshake", _SEE_CLIENT),
    "the tls handshake took too long": (
        "the TLS handshake took too long",
        "see the network to the client; limits.handshakeTimeout is the time for it",
    ),
}
_CLIENT_ALERTS: Mapping[str, tuple[str, str]] = {
    **{alert: (f"the client rejects the listener's certificate ({alert})", _NAME) for alert in _CERTIFICATE},
    "unknown ca": ("the client does not trust the authority of the listener's certificate (unknown ca)", _CA),
    "certificate unknown": ("the client does not trust the listener's certificate (certificate unknown)", _CA),
    "certificate expired": (
        "the client finds the listener's certificate expired (certificate expired)",
        "renew the certificate, then reload",
    ),
    "protocol version": (
        "the client accepts no version of TLS that the listener speaks (protocol version)",
        "update the client",
    ),
    "insufficient security": (
        "the client finds the listener's ciphers too weak (insufficient security)",
        _SEE_CLIENT,
    ),
    "user cancelled": ("the client cancelled the handshake (user cancelled)", _SEE_CLIENT),
}
_SERVER: Mapping[str, Cause] = {
    **dict.fromkeys(_CLOSED, Cause("it closed the connection during the handshake", CauseCode.HANDSHAKE_FAILED)),
    **dict.fromkeys(_NOT_TLS, Cause("it does not speak TLS", CauseCode.NOT_TLS)),
    **dict.fromkeys(_VERSION, Cause("it speaks no version of TLS that is accepted here", CauseCode.TLS_VERSION)),
    **dict.fromkeys(
        _CIPHER,
        Cause("it has no cipher or signature algorithm in common with this proxy", CauseCode.HANDSHAKE_FAILED),
    ),
    "connection reset by peer": Cause("it reset the connection during the handshake", CauseCode.HANDSHAKE_FAILED),
}
_SERVER_ALERTS: Mapping[str, Cause] = {
    **{
        alert: Cause(f"it rejects the proxy's client certificate ({alert})", CauseCode.CLIENT_CERTIFICATE)
        for alert in _CERTIFICATE
    },
    "certificate required": Cause(
        "it requires a client certificate (certificate required)", CauseCode.CLIENT_CERTIFICATE
    ),
    "handshake failure": Cause(
        "it accepts no cipher of this proxy, or requires a client certificate (handshake failure)",
        CauseCode.NO_COMMON_CIPHER,
    ),
    "protocol version": Cause(
        "it speaks no version of TLS that is accepted here (protocol version)", CauseCode.TLS_VERSION
    ),
    "unrecognized name": Cause(
        "it does not know the requested server name (unrecognized name)", CauseCode.SERVER_NAME_UNKNOWN
    ),
    "no application protocol": Cause(
        "it speaks none of the offered protocols (no application protocol)", CauseCode.NO_COMMON_PROTOCOL
    ),
    "internal error": Cause("it has failed internally (internal error)", CauseCode.HANDSHAKE_FAILED),
}


def of_client(reason: str) -> tuple[str, str]:
    """Return the cause of a client's failed handshake with a listener, and the remedy for an operator.

    `reason` is from `net.connect_errors.tls_reason`.
    """
    known, alert = _find(reason, _CLIENT, _CLIENT_ALERTS)
    if known is not None:
        return known
    return (f"the client ended the handshake ({alert})" if alert else reason), _SEE_CLIENT


def of_server(reason: str) -> Cause:
    """Return the cause of a failed handshake with a server."""
    known, alert = _find(reason, _SERVER, _SERVER_ALERTS)
    if known is not None:
        return known
    return Cause(f"it ended the handshake ({alert})" if alert else reason, CauseCode.HANDSHAKE_FAILED)


def _find(reason: str, known: Mapping[str, T], alerts: Mapping[str, T]) -> tuple[T | None, str]:
    """Return the entry for the first known part of `reason`, or the name of an unknown alert."""
    for part in reason.split("; "):
        part = part.lower()
        if part in known:
            return known[part], ""
        alert = _ALERT.fullmatch(part)
        if alert is not None:
            return alerts.get(alert["alert"]), alert["alert"]
    return None, ""
