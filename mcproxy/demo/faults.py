"""Faults on demand: a simulated apiserver that is slow, silent, rude or wrong, for the requests that a test chooses.

A `Fault` says which requests it hits (method, path prefixes, endpoint, how many) and what happens to them. Those that
only bend the answer (latency, drip, cut) let the real handler run; the others write bytes by hand and the handler never
sees the request.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from aiohttp import web

from mcproxy.demo import negotiate, status
from mcproxy.demo.upgrade import Hijacked, take_over

__all__ = ["KINDS", "Fault", "FaultError", "Faults", "reset_transport"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HELD_POLL_SECONDS = 0.25
HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
GARBAGE = b"\x16\x03\x01 this is not HTTP\x00\xff\r\n\r\n"


class FaultError(ValueError):
    """The description of a fault makes no sense; the text says why."""


@dataclass
class Fault:
    """What goes wrong, and for which requests.

    kind:
      latency             wait `seconds`, then answer as usual
      blackHole           read the request and never answer (until the fault is removed: then the connection is reset)
      status              answer `code`; `text` as text/plain, else a Status object; `retryAfter` seconds if not 0
                          (429 without `text` is that of flow control: its text, and Retry-After 1 if not said)
      unhealthy           status 500 for /healthz, /livez and /readyz
      drip                answer as usual, but `bytes` bytes every `seconds`
      closeAfterBytes     answer as usual, but close (FIN, with close_notify) after `bytes` bytes of the response
      resetAfterBytes     the same with a TCP reset
      resetBeforeHead     reset instead of an answer
      resetMidHead        reset within the response head
      resetMidBody        reset in a body with Content-Length
      resetMidChunk       reset within a chunk
      longContentLength   a Content-Length that is larger than the body, then close
      shortContentLength  a Content-Length that is smaller than the body, then keep open
      garbage             bytes that are no HTTP, then close
      raw                 `raw` (base64) instead of a response, then `after`: close, reset or hang
    """

    kind: str
    methods: tuple[str, ...] = ()
    """Empty: all."""
    paths: tuple[str, ...] = ()
    """Prefixes of the raw path; empty: all."""
    endpoint: int | None = None
    count: int | None = None
    """How many requests it still hits; None: no end."""
    skip: int = 0
    """Lets this many matching requests through first."""
    seconds: float = 0.0
    bytes: int = 0
    code: int = 500
    text: str | None = None
    retryAfter: int = 0
    raw: str = ""
    after: str = "close"
    ident: int = 0
    removed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fault:
        """From the control API's JSON. Raises FaultError for unknown keys or kinds."""
        known = {item.name for item in fields(cls)} - {"ident", "removed"}
        if unknown := sorted(set(data) - known):
            raise FaultError(f"unknown keys: {', '.join(unknown)}")
        if data.get("kind") not in KINDS:
            raise FaultError(f"kind must be one of {', '.join(sorted(KINDS))}")
        values = dict(data)
        for name in ("methods", "paths"):
            value = values.get(name, ())
            values[name] = (value,) if isinstance(value, str) else tuple(value)
        if values["kind"] == "unhealthy" and not values["paths"]:
            values["paths"] = HEALTH_PATHS
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "removed"}

    def matches(self, method: str, path: str, endpoint: int) -> bool:
        return (
            (not self.methods or method in self.methods)
            and (not self.paths or path.startswith(self.paths))
            and self.endpoint in (None, endpoint)
        )


class Faults:
    """The faults that are switched on for one cluster; the first one that matches a request is applied."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._used_up: list[Fault] = []
        self._ident = 0
        self._hung: dict[int, asyncio.Event] = {}

    def add(self, fault: Fault) -> int:
        """Switches a fault on and gives its identity for `remove`."""
        self._ident += 1
        fault.ident = self._ident
        self._faults.append(fault)
        return fault.ident

    def remove(self, ident: int | None = None) -> None:
        """Switches one off, or all."""
        for fault in [fault for fault in self._used_up + self._faults if ident in (None, fault.ident)]:
            fault.removed.set()
        self._faults = [fault for fault in self._faults if not fault.removed.is_set()]
        self._used_up = [fault for fault in self._used_up if not fault.removed.is_set()]

    def active(self) -> list[Fault]:
        return list(self._faults)

    def hang(self, endpoint: int) -> None:
        """Requests of an endpoint wait from now on."""
        self._hung.setdefault(endpoint, asyncio.Event())

    def resume(self, endpoint: int) -> None:
        """Requests that waited go on."""
        event = self._hung.pop(endpoint, None)
        if event is not None:
            event.set()

    async def goes_on(self, request: web.BaseRequest) -> bool:
        """Waits while the endpoint of a stream that is under way hangs; False when the client leaves first."""
        hung = self._hung.get(request["endpoint"])
        return hung is None or await _held(request, hung)

    def pick(self, method: str, path: str, endpoint: int) -> Fault | None:
        """The fault for a request, counted as used."""
        for fault in self._faults:
            if not fault.matches(method, path, endpoint):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.count is not None:
                fault.count -= 1
                if fault.count <= 0:
                    self._faults.remove(fault)
                    self._used_up.append(fault)
            return fault
        return None

    async def apply(
        self, request: web.Request, endpoint: int, handler: Handler, note: Callable[[str], None] | None = None
    ) -> web.StreamResponse:
        """Runs a request's handler, or what a fault does instead; `note` is told the kind of the fault."""
        request["endpoint"] = endpoint
        if not await self.goes_on(request):
            return Hijacked()
        fault = self.pick(request.method, request.raw_path, endpoint)
        if fault is None:
            return await handler(request)
        if note is not None:
            note(fault.kind)
        return await KINDS[fault.kind](fault, request, handler)


def reset_transport(transport: asyncio.Transport) -> None:
    """Ends a connection with a TCP RST."""
    _linger_zero(transport.get_extra_info("socket"))
    transport.abort()


def _linger_zero(sock: Any) -> None:
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _latency(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    await asyncio.sleep(fault.seconds)
    return await handler(request)


async def _black_hole(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    await _held(request, fault.removed)
    return await _write(request, b"", "reset")


async def _held(request: web.BaseRequest, until: asyncio.Event) -> bool:
    """Waits for the event; False when the client leaves first."""
    while not until.is_set():
        if request.transport is None:
            return False
        try:
            await asyncio.wait_for(until.wait(), HELD_POLL_SECONDS)
        except TimeoutError:
            continue
    return True


async def _status(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return negotiate.error_response(request, _refusal(fault))


def _refusal(fault: Fault) -> status.APIError:
    """What a `status` fault answers: text as Go's http.Error sends it, else a Status object."""
    if fault.code == 429 and fault.text is None:
        return status.too_many_requests(fault.retryAfter or 1)
    headers = [("Retry-After", str(fault.retryAfter))] if fault.retryAfter else []
    if fault.text is not None:
        headers.append(("X-Content-Type-Options", "nosniff"))
        return status.APIError(fault.code, "", fault.text, text=True, headers=headers)
    reasons = {500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
    return status.APIError(
        fault.code, reasons.get(fault.code, ""), f"a fault was asked for: {fault.code}", headers=headers
    )


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
        await asyncio.sleep(0.02)  # lets the kernel send what was written; a reset drops what has not left yet
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


class _BentTransport:
    """Stands in for a connection's transport while aiohttp writes a response, and passes the bytes on bent."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))


class _Cut(_BentTransport):
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
            if self._reset:  # a little later: a reset drops what has not left yet
                asyncio.get_running_loop().call_later(0.02, reset_transport, self._transport)
            else:
                self._transport.close()


class _Drip(_BentTransport):
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


async def _bent(request: web.Request, handler: Handler, bend: Callable[[asyncio.Transport], Any]) -> web.StreamResponse:
    transport = request.protocol.transport
    if transport is None:
        return Hijacked()
    request.protocol.transport = bend(transport)
    return await handler(request)


async def _drip(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _bent(request, handler, lambda transport: _Drip(transport, fault.bytes, fault.seconds))


async def _close_after(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _bent(request, handler, lambda transport: _Cut(transport, fault.bytes, reset=False))


async def _reset_after(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    return await _bent(request, handler, lambda transport: _Cut(transport, fault.bytes, reset=True))


KINDS: dict[str, Callable[[Fault, web.Request, Handler], Awaitable[web.StreamResponse]]] = {
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
