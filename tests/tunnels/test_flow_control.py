"""Windows of connections to a hub that is far away."""

from __future__ import annotations

from typing import Any

import pytest_twisted  # type: ignore[import-untyped]

from tests.proxy.harness import get
from tests.tunnels.site import TunnelSite

ALICE = b"Authorization: Bearer alice-token"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_upload_does_not_wait_for_a_window_of_64_kib(site: TunnelSite) -> None:
    """While nothing comes back from the edge, a megabyte is on its way."""
    await site.start()
    assert (await site.ask())[0] == 200
    size = 1_000_000
    (engine,) = [each.protocol for each in site.state._connections]
    site.upstream.reply = None
    head = get(b"/api/v1/pods", ALICE, b"Content-Length: %d" % size, method=b"POST")
    towards_the_hub: list[Any] = [end.inner and end.inner.transport for end in site.passage.ends]
    for transport in towards_the_hub:
        transport.pauseProducing()  # what the hub sends to the edge stays in the sockets
    client = await site.hub.asks(head)
    client.send(b"x" * size)
    await site.hub.until(lambda: engine.streams, "the request")
    await site.hub.turns(50)
    (stream,) = engine.streams.values()
    assert stream.send_window == 1024 * 1024 - size, "all of it was sent"
    for transport in towards_the_hub:
        transport.resumeProducing()
    await site.hub.until(lambda: b"x" * 100 in site.upstream.received, "the upload")
    client.abort()
