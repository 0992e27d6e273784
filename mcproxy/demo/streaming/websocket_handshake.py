"""The opening handshake of a WebSocket (RFC 6455 section 4.2), as a real apiserver answers it."""

from __future__ import annotations

from aiohttp import web

from mcproxy.demo.auth.authentication import BEARER_PROTOCOL
from mcproxy.demo.request.upgrade import response_head
from mcproxy.demo.streaming.websocket_frames import accept_key


def is_websocket(request: web.BaseRequest) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def offered_protocols(request: web.BaseRequest) -> list[str]:
    """The Sec-WebSocket-Protocol values that the client offers, without a bearer token among them."""
    values = request.headers.getall("Sec-WebSocket-Protocol", ())
    offered = [item.strip() for value in values for item in value.split(",")]
    return [item for item in offered if not item.startswith(BEARER_PROTOCOL)]


def websocket_head(request: web.BaseRequest, protocol: str | None) -> bytes:
    """The 101; `protocol` may be empty, which a real apiserver sends as an empty header, or None for no header."""
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept_key(request.headers.get("Sec-WebSocket-Key", ""))),
    ]
    if protocol is not None:
        headers.append(("Sec-WebSocket-Protocol", protocol))
    return response_head("101 Switching Protocols", headers)
