"""The opening handshake of WebSocket (RFC 6455 section 4.2), as in a real apiserver."""

from __future__ import annotations

from aiohttp import web

from kubesim.auth.authentication import BEARER_PROTOCOL
from kubesim.request.upgrade import response_head
from mcproxy.kube.websocket_frames import accept_key


def is_websocket(request: web.BaseRequest) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def offered_protocols(request: web.BaseRequest) -> list[str]:
    """Return the subprotocols that the client offers, without a bearer token."""
    values = request.headers.getall("Sec-WebSocket-Protocol", ())
    offered = [item.strip() for value in values for item in value.split(",")]
    return [item for item in offered if not item.startswith(BEARER_PROTOCOL)]


def websocket_head(request: web.BaseRequest, protocol: str | None) -> bytes:
    """Return the 101; an empty `protocol` gives an empty header, as in a real apiserver, None no header."""
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept_key(request.headers.get("Sec-WebSocket-Key", ""))),
    ]
    if protocol is not None:
        headers.append(("Sec-WebSocket-Protocol", protocol))
    return response_head("101 Switching Protocols", headers)
