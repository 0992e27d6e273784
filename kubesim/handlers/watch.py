"""Watch responses: one line of JSON for each event, or one frame of a WebSocket.

Over WebSocket every event is one text frame in any subprotocol; a client must send an Origin.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator

from aiohttp import web

from kubesim.apimachinery.resources import JSONDict
from kubesim.request import negotiation
from kubesim.request.call import Call
from kubesim.request.fault_injection import wait_while_hung
from kubesim.request.upgrade import (
    ByteStream,
    Hijacked,
    close_websocket,
    offered_protocols,
    response_head,
    take_over,
    websocket_head,
    websocket_messages,
)
from kubesim.storage.list_watch import events, open_watch
from mcproxy.kube import list_options, media_types
from mcproxy.kube.list_options import ListOptions
from mcproxy.kube.media_types import NegotiatedMediaType
from mcproxy.kube.websocket_frames import TEXT, frame


async def lines(call: Call, options: ListOptions, accepted: NegotiatedMediaType) -> AsyncIterator[bytes]:
    """Yield the events as lines, in the negotiated representation."""
    first = True
    sort = not call.target.builtin
    include = negotiation.include_object(call) if accepted.kind == "Table" else ""
    async for kind, obj in events(call.cluster.store, call.target, call.info.scope, options):
        if kind != "ERROR" and accepted.kind == "Table":
            obj = _table(call, kind, obj, accepted, include, first=first)
            first = False
        elif kind != "ERROR" and accepted.kind:
            obj = negotiation.partial(obj, accepted)
        is_meta = kind == "ERROR" or bool(accepted.kind)
        encoded = negotiation.encode(obj, media_types.JSON, sort=sort and not is_meta).rstrip(b"\n")
        yield b'{"type":"' + kind.encode() + b'","object":' + encoded + b"}\n"


def _table(
    call: Call, kind: str, obj: JSONDict, accepted: NegotiatedMediaType, include: str, *, first: bool
) -> JSONDict:
    """Return one event's Table; only the first of a watch has columnDefinitions."""
    metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
    table = negotiation.table_of(call, [obj], metadata, accepted, include)
    if not first:
        table["columnDefinitions"] = None
    return table


def _negotiate(call: Call) -> NegotiatedMediaType:
    accepted = negotiation.negotiate(call)
    if accepted.media_type != media_types.JSON:
        served = (media_types.JSON, media_types.PROTOBUF) if call.target.builtin else (media_types.JSON,)
        raise media_types.only_accepted(tuple(f"{media_type};stream=watch" for media_type in served))
    return accepted


async def serve_watch(call: Call) -> web.StreamResponse:
    """Answer a watch. Raises APIError for errors that are known before the first byte."""
    info = call.info
    options = list_options.parse(call.query, watch=True)
    accepted = _negotiate(call)
    if info.path_name:
        options = _for_name(options, info.path_name)
    open_watch(call.cluster.store, call.target, info.scope, options)
    if accepted.kind == "Table":
        negotiation.include_object(call)
    if call.request.headers.get("Upgrade", "").lower() == "websocket":
        return await _websocket(call, lines(call, options, accepted))
    response = web.StreamResponse(headers={**negotiation.base_headers(call), "Content-Type": media_types.JSON})
    if call.request.version >= (1, 1):
        response.enable_chunked_encoding()
    await response.prepare(call.request)
    stream = lines(call, options, accepted)
    try:
        async for line in stream:
            if not await wait_while_hung(call.cluster.faults, call.request):
                return response
            await response.write(line)
        await response.write_eof()
    except ConnectionError:
        pass  # the client has disconnected
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
    return response


def _for_name(options: ListOptions, name: str) -> ListOptions:
    """Limit the options to one object, for the deprecated /watch/ path."""
    term = f"metadata.name={name}"
    joined = ",".join(part for part in (options.field_selector, term) if part)
    return ListOptions(**{**vars(options), "field_selector": joined})


async def _websocket(call: Call, stream: AsyncIterator[bytes]) -> web.StreamResponse:
    module = importlib.import_module("kubesim.handlers.watch")
    response: web.StreamResponse = await module.serve(call, stream)
    return response


PROTOCOLS = ("", "binary.k8s.io", "base64.binary.k8s.io")


async def serve(call: Call, lines: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send the lines until they end or the client disconnects."""
    offered = offered_protocols(call.request)
    protocol = next((item for item in offered if item in PROTOCOLS), None)
    if "Origin" not in call.request.headers or (offered and protocol is None):
        take_over(call.request, response_head("403 Forbidden", [])).close()
        return Hijacked(403)
    stream = take_over(call.request, websocket_head(call.request, protocol))
    jobs = [asyncio.ensure_future(_send(stream, lines)), asyncio.ensure_future(_receive(stream))]
    try:
        await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        stream.close()
    return Hijacked()


async def _send(stream: ByteStream, lines: AsyncIterator[bytes]) -> None:
    async for line in lines:
        await stream.write(frame(TEXT, line))
    await close_websocket(stream)


async def _receive(stream: ByteStream) -> None:
    """Answer pings; return when the client closes."""
    async for _ in websocket_messages(stream):
        pass
    await close_websocket(stream)
