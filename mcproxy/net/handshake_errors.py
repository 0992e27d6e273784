"""Words for what OpenSSL says about a handshake that failed: with a client, and with a server. Pure.

The reasons are those of OpenSSL's ssl_err.c; 1.1 and 3.x write "sslv3 alert …" where 4.0 writes "tls alert …". Reasons
without an entry are returned as they are: each is an English phrase, and none has anything of the peer's choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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

_CLIENT: Mapping[str, str] = {
    **dict.fromkeys(_CLOSED, "the client closed the connection during the handshake"),
    **dict.fromkeys(_NOT_TLS, "what the client sent is not TLS"),
    **dict.fromkeys(_VERSION, "the client offers no version of TLS that the listener accepts"),
    **dict.fromkeys(_CIPHER, "the client and the listener have no cipher or signature algorithm in common"),
    "http request": "the client speaks HTTP without TLS",
    "https proxy request": "the client takes the listener for an HTTP proxy (CONNECT)",
    "no application protocol": "the client and the listener have no protocol in common (ALPN)",
    "connection reset by peer": "the client reset the connection during the handshake",
}
_CLIENT_ALERTS: Mapping[str, str] = {
    **{alert: f"the client rejects the listener's certificate ({alert})" for alert in _CERTIFICATE},
    "unknown ca": "the client does not trust the authority of the listener's certificate (unknown ca)",
    "certificate unknown": "the client does not trust the listener's certificate (certificate unknown)",
    "certificate expired": "the client finds the listener's certificate expired (certificate expired)",
    "protocol version": "the client accepts no version of TLS that the listener speaks (protocol version)",
    "insufficient security": "the client finds the listener's ciphers too weak (insufficient security)",
    "user cancelled": "the client cancelled the handshake (user cancelled)",
}
_SERVER: Mapping[str, str] = {
    **dict.fromkeys(_CLOSED, "it closed the connection during the handshake"),
    **dict.fromkeys(_NOT_TLS, "it does not speak TLS"),
    **dict.fromkeys(_VERSION, "it speaks no version of TLS that is accepted here"),
    **dict.fromkeys(_CIPHER, "it has no cipher or signature algorithm in common with this proxy"),
    "connection reset by peer": "it reset the connection during the handshake",
}
_SERVER_ALERTS: Mapping[str, str] = {
    **{alert: f"it rejects the proxy's client certificate ({alert})" for alert in _CERTIFICATE},
    "certificate required": "it requires a client certificate (certificate required)",
    "handshake failure": "it accepts no cipher of this proxy, or requires a client certificate (handshake failure)",
    "protocol version": "it speaks no version of TLS that is accepted here (protocol version)",
    "unrecognized name": "it does not know the server name that was asked for (unrecognized name)",
    "no application protocol": "it speaks none of the protocols that were offered (no application protocol)",
    "internal error": "it failed inside (internal error)",
}


def of_client(reason: str) -> str:
    """Return why a client's handshake with a listener failed; `reason` is from `net.connect_errors.tls_reason`."""
    return _words(reason, _CLIENT, _CLIENT_ALERTS, "the client ended the handshake")


def of_server(reason: str) -> str:
    """Return why the handshake with a server failed."""
    return _words(reason, _SERVER, _SERVER_ALERTS, "it ended the handshake")


def _words(reason: str, known: Mapping[str, str], alerts: Mapping[str, str], ended: str) -> str:
    for part in reason.split("; "):  # the first that says something
        part = part.lower()
        if part in known:
            return known[part]
        alert = _ALERT.fullmatch(part)
        if alert is not None:
            name = alert["alert"]
            return alerts.get(name) or f"{ended} ({name})"
    return reason


_REMEDIES = (
    ("the client does not trust ", "give the client the CA of the listener's certificate (mcproxy kubeconfig --ca)"),
    ("the client finds the listener's certificate expired", "renew the certificate, then reload"),
    ("the client rejects the listener's certificate", "see that the certificate has the name that the client uses"),
    (
        "what the client sent is not TLS",
        "see what it is; a load balancer with PROXY headers belongs in proxyProtocol.from",
    ),
    ("the client speaks HTTP without TLS", "let the client use https://"),
    ("the client takes the listener for an HTTP proxy", "take the listener's address out of the client's HTTPS_PROXY"),
    ("the client offers no version of TLS", "update the client; tls.minVersion of the listener is the oldest accepted"),
    ("the client accepts no version of TLS", "update the client"),
    ("the client has no ALPN", "let the client use HTTP/2, or add HTTP1 to protocols of the listener"),
    (
        "the client and the listener have no protocol in common",
        "add the client's protocol to protocols of the listener",
    ),
    ("the TLS handshake took too long", "see the network to the client; limits.handshakeTimeout is how long it has"),
)


def remedy_of_client(cause: str) -> str:
    """Return what an operator can do about a handshake that failed; `cause` as `of_client` returns it."""
    return next((todo for begin, todo in _REMEDIES if cause.startswith(begin)), "see what the client is")
