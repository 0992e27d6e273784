"""Applies a fault to a request: latency, resets, broken heads and bodies, silence.

The kinds and the choice of the fault for a request are in `diagnostics.faults`.
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
    faults: Faults,
    request: web.Request,
    endpoint: int,
    handler: Handler,
    note: Callable[[str], None] | None = None,
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


def _refusal(fault: Fault) -> status.APIError:
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
    if after == "hang":
        while await stream.read():
            pass
    elif after == "reset":
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


class _ChangedTransport:
    """Replaces a connection's transport while aiohttp writes a response, and changes the written bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))


class _Cut(_ChangedTransport):
    def __init__(self, transport: asyncio.Transport, left: int, *, reset: bool) -> None:
        super().__init__(transport)
        self._left = left
        self._reset = reset

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(bytes(data[: self._left]))
        self._left -= len(data)
        if self._left <= 0:
            if self._reset:  # later, since a reset drops unsent data
                asyncio.get_running_loop().call_later(0.02, reset_transport, self._transport)
            else:
                self._transport.close()


class _Drip(_ChangedTransport):
    def __init__(self, transport: asyncio.Transport, size: int, seconds: float) -> None:
        super().__init__(transport)
        self._queue = bytearray()
        self._size = max(1, size)
        self._seconds = seconds
        self._closing = False
        self.drained = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        self._queue += data
        self.drained.clear()
        if self._timer is None:
            self._tick()

    def _tick(self) -> None:
        self._timer = None
        if self._transport.is_closing():
            self._queue.clear()
        if not self._queue:
            self.drained.set()
            if self._closing:
                self._transport.close()
            return
        self._transport.write(bytes(self._queue[: self._size]))
        del self._queue[: self._size]
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._tick)

    def close(self) -> None:
        self._closing = True
        if self._timer is None:
            self._tick()


async def _with_transport(
    request: web.Request, handler: Handler, wrap: Callable[[asyncio.Transport], Any]
) -> web.StreamResponse:
    transport = request.protocol.transport
    if transport is None:
        return Hijacked()
    request.protocol.transport = wrap(transport)
    return await handler(request)


async def _drip(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _with_transport(request, handler, lambda transport: _Drip(transport, fault.bytes, fault.seconds))


async def _close_after(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _with_transport(request, handler, lambda transport: _Cut(transport, fault.bytes, reset=False))


async def _reset_after(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _with_transport(request, handler, lambda transport: _Cut(transport, fault.bytes, reset=True))


ACTIONS: dict[str, Callable[[Fault, web.Request, Handler], Awaitable[web.StreamResponse]]] = {
    "latency": _latency,
    "blackHole": _black_hole,
    "status": _status,
    "unhealthy": _unhealthy,
    "drip": _drip,
    "closeAfterBytes": _close_after,
    "resetAfterBytes": _reset_after,
    "resetBeforeHead": _canned(b"", "reset"),
    "resetMidHead": _canned(_HEAD[:30], "reset"),
    "resetMidBody": _canned(_HEAD + b'Content-Length: 1000\r\n\r\n{"kind":"PodList"', "reset"),
    "resetMidChunk": _canned(_HEAD + b'Transfer-Encoding: chunked\r\n\r\n3e8\r\n{"kind":"PodList"', "reset"),
    "longContentLength": _canned(_HEAD + b'Content-Length: 1000\r\n\r\n{"kind":"Status"}\n', "close"),
    "shortContentLength": _canned(_HEAD + b'Content-Length: 5\r\n\r\n{"kind":"Status"}\n', "hang"),
    "garbage": _canned(GARBAGE, "close"),
    "raw": _raw,
}
