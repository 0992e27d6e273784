"""A finished request is freed at once: nothing of it is left to the garbage collector."""

from __future__ import annotations

import gc

from mcproxy.http.exchange import Exchange
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Request
from tests.proxy.harness import OK, Harness, always, cluster, config, get


def objects_of_requests() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, Request | Exchange | Forward)]


async def test_finished_requests_leave_no_cycles(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    await harness.serve(config([cluster(upstream.endpoint())]))
    gc.collect()  # before the client comes: it may take as long as a client has for its request
    gc.disable()
    try:
        client = await harness.client()
        client.send(get())  # what a connection keeps of its last request is made
        await harness.until(lambda: client.received.count(b"{}") == 1)
        others = {
            id(each): each for each in objects_of_requests()
        }  # of this process' other tests; held, so that no id is used again

        def left() -> list[str]:
            return [type(each).__name__ for each in objects_of_requests() if id(each) not in others]

        for number in range(2, 7):
            client.send(get())
            await harness.until(lambda number=number: client.received.count(b"{}") == number)  # type: ignore[misc]
        # The connection may still refer to its last request; and an answer is read before its connection is idle.
        await harness.until(lambda: len(left()) <= 3, "the end of all requests but the last")
    finally:
        gc.enable()
