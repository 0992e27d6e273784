"""Applies a fault to a request: latency, resets, broken heads and bodies, silence.

The kinds and the choice of the fault for a request are in `faults`.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from kubesim.apimachinery import status
from kubesim.faults import Fault, Faults
from kubesim.request import negotiation
from kubesim.request.upgrade import Hijacked, take_over

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ENDPOINT = web.RequestKey("endpoint", int)
"""The index of the listening port that received a request."""
POLL_SECONDS = 0.25
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
GARBAGE = b"\x16\x03\x01 this is not HTTP\x00\xff\r\n\r\n"


async def apply(
    faults: Faults, request: web.Request, endpoint: int, handler: Handler, note: Callable[[str], None] | None = None
) -> web.StreamResponse:
    """Run a request's handler, or the effect of a fault in its place; `note` is called with the kind of the fault."""
    request[ENDPOINT] = endpoint
    if not await wait_while_hung(faults, request):
        return Hijacked()
    fault = faults.pick(request.method, request.raw_path, endpoint)
    if fault is None:
        return await handler(request)
    if note is not None:
        note(fault.kind)
    return await ACTIONS[fault.kind](fault, request, handler)


async def wait_while_hung(faults: Faults, request: web.BaseRequest) -> bool:
    """Wait while the endpoint of a request hangs; return False when the client disconnects first."""
    hung = faults.hung(request[ENDPOINT])
    return hung is None or await _wait_for(request, hung)


async def _wait_for(request: web.BaseRequest, until: asyncio.Event) -> bool:
    """Wait for the event; return False when the client disconnects first."""
    while not until.is_set():
        if request.transport is None:
            return False
        try:
            await asyncio.wait_for(until.wait(), POLL_SECONDS)
        except TimeoutError:
            continue
    return True


def reset_transport(transport: asyncio.Transport) -> None:
    """End a connection with a TCP RST."""
    _linger_zero(transport.get_extra_info("socket"))
    transport.abort()


def _linger_zero(sock: Any) -> None:
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _latency(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    await asyncio.sleep(fault.seconds)
    return await handler(request)


async def _black_hole(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    await _wait_for(request, fault.removed)
    return await _write(request, b"", "reset")


async def _status(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return negotiation.error_response(request, _refusal(fault))


def _refusal(fault: Fault) -> status.StatusError:
    """Return the response of a `status` fault: text as Go's http.Error sends it, else a Status object."""
    if fault.code == 429 and fault.text is None:
        return status.too_many_requests(fault.retryAfter or 1)
    headers = [("Retry-After", str(fault.retryAfter))] if fault.retryAfter else []
    if fault.text is not None:
        headers.append(("X-Content-Type-Options", "nosniff"))
        return status.APIError(fault.code, "", fault.text, text=True, headers=headers)
    reasons = {500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
    return status.APIError(fault.code, reasons.get(fault.code, ""), f"injected fault: {fault.code}", headers=headers)


async def _unhealthy(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    text = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"
    return web.Response(status=fault.code, text=fault.text or text, headers={"X-Content-Type-Options": "nosniff"})


async def _write(request: web.Request, data: bytes, after: str) -> web.StreamResponse:
    try:
        stream = take_over(request, data)
    except ConnectionResetError:
        return Hijacked()
    if after == "reset":
        await asyncio.sleep(0.02)  # the kernel first sends the data already written: a reset drops unsent data
        reset_transport(stream.transport)
    else:
        stream.close()
    return Hijacked()


def _canned(data: bytes, after: str) -> Callable[[Fault, web.Request, Handler], Awaitable[web.StreamResponse]]:
    async def answer(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _write(request, data, after)

    return answer


async def _raw(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _write(request, base64.b64decode(fault.raw), fault.after)


ACTIONS: dict[str, Callable[[Fault, web.Request, Handler], Awaitable[web.StreamResponse]]] = {
    "latency": _latency,
    "blackHole": _black_hole,
    "status": _status,
    "unhealthy": _unhealthy,
    "resetBeforeHead": _canned(b"", "reset"),
    "resetMidHead": _canned(_HEAD[:30], "reset"),
    "resetMidBody": _canned(_HEAD + b'Content-Length: 1000\r\n\r\n{"kind":"PodList"', "reset"),
    "resetMidChunk": _canned(_HEAD + b'Transfer-Encoding: chunked\r\n\r\n3e8\r\n{"kind":"PodList"', "reset"),
    "longContentLength": _canned(_HEAD + b'Content-Length: 1000\r\n\r\n{"kind":"Status"}\n', "close"),
    "garbage": _canned(GARBAGE, "close"),
    "raw": _raw,
}
