"""Over HTTP/2 too, a finished request is freed at once, however it ended."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from h2.errors import ErrorCodes

from mcproxy.http.exchange import Exchange
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.http.messages import RequestHead
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Request
from tests.proxy.harness import Harness, cluster, config, get, listener
from tests.proxy.http2_peers import H2_TLS, H2Upstream, PeerStream, h2_client

ENDS = ["whole", "trailers", "reset", "refused", "malformed"]
KINDS = Request | Exchange | Forward | H2ClientStream | RequestHead


def left() -> int:
    return sum(isinstance(each, KINDS) for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["HTTP1", "HTTP2"])
async def test_finished_requests_leave_no_cycles(harness: Harness, version: str) -> None:
    upstream = harness.add(H2Upstream(harness.reactor))
    listeners = [listener(protocols=(version,))]
    await harness.serve(config([cluster(upstream.endpoint(), tls=H2_TLS)], listeners=listeners))
    client: Any = await (h2_client(harness) if version == "HTTP2" else harness.client())

    end = ENDS[0]
    refusing = [False]  # the last one was refused

    def respond(stream: PeerStream, event: Any) -> None:
        if not stream.ended or stream.finished:
            return
        refused, refusing[0] = end == "refused" and not refusing[0], end == "refused" and not refusing[0]
        if end == "reset" or refused:
            stream.cancel(ErrorCodes.REFUSED_STREAM if refused else ErrorCodes.INTERNAL_ERROR)
            return
        stream.peer.engine.config.validate_outbound_headers = False
        stream.peer.engine.config.normalize_outbound_headers = False
        stream.head([(b":status", b"200"), (b"Upper" if end == "malformed" else b"lower", b"x")])
        stream.send(b"{}")
        stream.end([(b"a", b"b")] if end == "trailers" else None)

    upstream.stream_event = respond

    async def ask(number: int) -> None:
        if version == "HTTP2":
            stream = client.ask(method=b"POST")
            await harness.until(lambda: stream.over)
        else:
            client.send(get(method=b"POST"))
            await harness.until(lambda: client.received.count(b"HTTP/1.1 ") == number, "the response")

    for number, end in enumerate(ENDS, 1):  # noqa: B007  # `respond` reads it
        await ask(number)
    await harness.turns()
    gc.collect()
    gc.disable()
    try:
        before = left()
        for number, end in enumerate(ENDS * 5, len(ENDS) + 1):  # noqa: B007
            await ask(number)
        await harness.turns()
        upstream.h2[0].streams.clear()
        assert left() <= before + 6  # the last one may still be referred to
    finally:
        gc.enable()
