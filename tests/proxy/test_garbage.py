"""A finished request is freed at once: nothing of it is left to the garbage collector."""

from __future__ import annotations

import gc

from mcproxy.http.exchange import Exchange
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Request
from tests.proxy.harness import OK, Harness, always, cluster, config, get


def left() -> list[str]:
    return [type(each).__name__ for each in gc.get_objects() if isinstance(each, Request | Exchange | Forward)]


async def test_finished_requests_leave_no_cycles(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    await harness.serve(config([cluster(upstream.endpoint())]))
    gc.collect()  # before the client comes: it may take as long as a client has for its request
    gc.disable()
    try:
        before = left()
        client = await harness.client()
        for number in range(1, 6):
            client.send(get())
            await harness.until(lambda number=number: client.received.count(b"{}") == number)  # type: ignore[misc]
        assert len(left()) <= len(before) + 3  # the last one may still be referred to
    finally:
        gc.enable()
