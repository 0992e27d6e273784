"""Requests whose endpoint hangs or is removed before it answers: those that can be asked elsewhere are."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mcproxy.config import model
from mcproxy.upstream.endpoint import Endpoint
from tests.proxy.harness import OK, Harness, always, cluster, config, get

EVENT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
ONE_CONNECTION = model.Connections(max_connections=1)


async def endpoints(harness: Harness) -> tuple[Endpoint, ...]:
    """The live endpoints, once all of them are ready."""
    runtime = harness.service.runtime
    assert runtime is not None
    made = runtime.clusters["east"].endpoints
    await harness.until(lambda: all(endpoint.ready for endpoint in made), "readiness")
    return made


def goes_out(endpoint: Endpoint, *, silent: bool = False) -> None:
    for _ in range(3):
        endpoint.record_check("no answer", silent=silent)


async def test_a_read_is_asked_elsewhere_when_its_endpoint_goes_out_without_an_answer(harness: Harness) -> None:
    hung, well = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"), well.endpoint("b"))]))
    made = await endpoints(harness)
    well.reply = always(OK)
    client = await harness.asks(get())
    await harness.until(lambda: hung.received, "the request")
    goes_out(made[0])
    await harness.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200
    assert [endpoint.in_flight for endpoint in made] == [0, 0]


@pytest.mark.parametrize("others", [0, 1])
async def test_a_write_on_an_endpoint_that_fell_silent_is_504_when_it_is_out(harness: Harness, others: int) -> None:
    hung, well = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"), *[well.endpoint("b")][:others])]))
    made = await endpoints(harness)
    client = await harness.asks(get(b"/lease", b"Content-Length: 4", method=b"PUT") + b"body")
    await harness.until(lambda: hung.received.endswith(b"body"), "the request")
    goes_out(made[0], silent=True)
    await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
    code, _, body = client.answer()
    status = json.loads(body)
    assert (code, status["reason"]) == (504, "Timeout")
    assert status["message"] == (
        'endpoint a of cluster "east" went out before it answered; the request may have taken effect'
    )
    await harness.until(lambda: hung.last.over, "the end of the connection")
    assert not well.received
    assert made[0].in_flight == 0
    await harness.turns()
    assert harness.service.running == 0


async def test_one_late_check_of_an_endpoint_that_is_not_ready_does_not_make_it_silent(harness: Harness) -> None:
    upstream = harness.upstream()
    await harness.serve(config([cluster(upstream.endpoint("a"))]))
    made = await endpoints(harness)
    client = await harness.asks(get(b"/lease", method=b"DELETE"))
    await harness.until(lambda: upstream.received, "the request")
    for failure, silent in (("answered 500", False), ("answered 500", False), ("no answer", True)):
        made[0].record_check(failure, silent=silent)
    await harness.turns()
    assert not made[0].ready
    assert not client.received  # it may still answer
    for _ in range(2):
        made[0].record_check("no answer", silent=True)
    await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")  # three late ones in a row
    assert client.answer()[0] == 504


async def test_an_exec_that_a_silent_endpoint_did_not_answer_is_504_too(harness: Harness) -> None:
    hung = harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"))]))
    made = await endpoints(harness)
    upgrade = (b"Connection: Upgrade", b"Upgrade: websocket")
    client = await harness.asks(get(b"/api/v1/namespaces/a/pods/b/exec?command=sh", *upgrade))
    await harness.until(lambda: hung.received, "the request")
    goes_out(made[0], silent=True)
    await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
    assert client.answer()[0] == 504


async def test_a_write_stays_where_it_was_sent(harness: Harness) -> None:
    hung, well = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"), well.endpoint("b"))]))
    made = await endpoints(harness)
    client = await harness.asks(get(method=b"DELETE"))
    await harness.until(lambda: hung.received, "the request")
    goes_out(made[0])
    await harness.turns()
    assert not well.received
    hung.last.send(OK)
    await harness.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200


async def test_a_read_that_can_be_asked_nowhere_else_waits_on(harness: Harness) -> None:
    hung = harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"))]))
    made = await endpoints(harness)
    client = await harness.asks(get())
    await harness.until(lambda: hung.received, "the request")
    goes_out(made[0])
    await harness.turns()
    hung.last.send(OK)
    await harness.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200


async def test_who_waits_for_a_connection_to_a_removed_endpoint_goes_to_another(harness: Harness) -> None:
    goes, stays = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(goes.endpoint("a"), stays.endpoint("b"), connections=ONE_CONNECTION)]))
    await endpoints(harness)
    first = await harness.asks(get())
    await harness.until(lambda: goes.received, "the first")
    second = await harness.asks(get())
    await harness.until(lambda: stays.received, "the second")
    third = await harness.asks(get(b"/third", method=b"POST"))  # in the queue of the one that goes
    await harness.turns()
    await harness.serve(config([cluster(stays.endpoint("b"), connections=ONE_CONNECTION)]))
    stays.last.send(OK)
    await harness.until(lambda: b"/third" in stays.received, "the third")
    stays.last.send(OK)
    goes.last.send(OK)
    await harness.until(lambda: first.received and second.received and third.received, "all answers")
    assert [client.answer()[0] for client in (first, second, third)] == [200, 200, 200]
    assert b"/third" not in goes.received


async def test_who_waits_for_a_connection_to_an_endpoint_that_goes_out_goes_to_another(harness: Harness) -> None:
    hung, well = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"), well.endpoint("b"), connections=ONE_CONNECTION)]))
    made = await endpoints(harness)
    sent = await harness.asks(get(method=b"DELETE"))
    await harness.until(lambda: hung.received, "the first")
    well.reply = always(OK)
    await harness.asks(get())
    await harness.until(lambda: well.received, "the second, whose turn is the other's")
    waiting = await harness.asks(get(b"/third", method=b"DELETE"))
    await harness.turns()
    goes_out(made[0])
    await harness.until(lambda: waiting.received, "the answer")
    assert waiting.answer()[0] == 200
    assert b"/third" not in hung.received
    assert not sent.received
    assert "no answer" in made[0].state_message  # and not what those were told who waited


async def test_who_waits_while_all_its_endpoints_are_replaced_is_served_by_the_new_ones(harness: Harness) -> None:
    goes, other = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(goes.endpoint("a"), connections=ONE_CONNECTION)]))
    await endpoints(harness)
    first = await harness.asks(get())
    await harness.until(lambda: goes.received, "the first")
    second = await harness.asks(get(b"/second", b"Content-Length: 4", method=b"POST") + b"body")
    await harness.turns()
    other.reply = always(OK)
    await harness.serve(config([cluster(other.endpoint("b"), name="other")]))
    await harness.until(lambda: second.received, "the answer")
    assert second.answer()[0] == 200
    assert other.received.endswith(b"\r\n\r\nbody")
    goes.last.send(OK)
    await harness.until(lambda: first.received, "the answer")
    assert first.answer()[0] == 200
    assert b"/second" not in goes.received


async def test_a_read_on_a_removed_endpoint_that_dies_is_asked_of_the_new_ones(harness: Harness) -> None:
    goes, other = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(goes.endpoint("a"))]))
    await endpoints(harness)
    client = await harness.asks(get())
    await harness.until(lambda: goes.received, "the request")
    other.reply = always(OK)
    await harness.serve(config([cluster(other.endpoint("b"))]))
    goes.last.abort()
    await harness.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200


async def test_who_waits_and_finds_neither_old_nor_new_endpoints_is_refused(harness: Harness) -> None:
    goes = harness.upstream()
    away = model.EndpointConfig(name="b", scheme="http", host="127.0.0.1", port=1)
    await harness.serve(config([cluster(goes.endpoint("a"), connections=ONE_CONNECTION)]))
    await endpoints(harness)
    first = await harness.asks(get())
    await harness.until(lambda: goes.received, "the first")
    second = await harness.asks(get(b"/second"))
    await harness.turns()
    await harness.serve(config([cluster(away)]))
    await harness.until(lambda: second.received, "the refusal")
    status, fields, body = second.answer()
    assert (status, fields["retry-after"]) == (503, "5")
    assert b'no endpoint of cluster \\"east\\" is ready: b: ' in body
    goes.last.send(OK)
    await harness.until(lambda: first.received, "the answer")


@pytest.mark.parametrize("silent", [True, False])
async def test_a_watch_on_a_silent_endpoint_ends_cleanly_to_be_resumed_elsewhere(
    harness: Harness, silent: bool
) -> None:
    hung, well = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"), well.endpoint("b"))]))
    made = await endpoints(harness)
    hung.reply = always(EVENT)
    client = await harness.asks(get(b"/api/v1/pods?watch=1"))
    await harness.until(lambda: client.received.endswith(b"{}\n\r\n"), "the first event")
    for _ in range(3):
        made[0].record_check("no answer" if silent else "answered 500", silent=silent)
    await harness.turns()
    assert client.received.endswith(b"\r\n0\r\n\r\n") == silent  # one that can say that it is not ready goes on
    assert made[0].in_flight == (0 if silent else 1)


async def test_a_watch_on_a_silent_endpoint_stays_where_no_other_is_ready(harness: Harness) -> None:
    hung = harness.upstream()
    await harness.serve(config([cluster(hung.endpoint("a"))]))
    made = await endpoints(harness)
    hung.reply = always(EVENT)
    client = await harness.asks(get(b"/api/v1/pods?watch=1"))
    await harness.until(lambda: client.received.endswith(b"{}\n\r\n"), "the first event")
    for _ in range(3):
        made[0].record_check("no answer", silent=True)
    await harness.turns()
    hung.last.send(b"3\r\n[]\n\r\n")
    await harness.until(lambda: client.received.endswith(b"[]\n\r\n"), "the next event")


async def test_endpoints_of_the_configuration_before_the_last_take_nothing_when_they_are_removed(
    harness: Harness,
) -> None:
    one, other = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(one.endpoint("a"), other.endpoint("b"))]))
    first = await endpoints(harness)
    runtime = harness.service.runtime
    assert runtime is not None
    await harness.serve(config([cluster(one.endpoint("a"), other.endpoint("b"), connections=ONE_CONNECTION)]))
    assert [endpoint.ready for endpoint in first] == [True, True]  # for requests that began before
    disabled = dataclasses.replace(other.endpoint("b"), disabled=True)
    await harness.serve(config([cluster(one.endpoint("a"), disabled, connections=ONE_CONNECTION)]))
    assert [endpoint.ready for endpoint in first] == [True, False]
    await harness.serve(config([cluster(other.endpoint("b"), connections=ONE_CONNECTION)]))
    assert [endpoint.ready for endpoint in first] == [False, True]


async def status_of(harness: Harness, method: bytes = b"GET") -> int:
    client = await harness.asks(get(method=method))
    await harness.until(lambda: client.received.endswith((b"}\n", b"{}", b"ok")), "the answer")
    return client.answer()[0]


async def test_with_no_endpoint_ready_one_that_was_is_tried(harness: Harness) -> None:
    slow, dead = harness.upstream(), harness.upstream()
    await harness.serve(config([cluster(slow.endpoint("a"), dead.endpoint("b"))]))
    made = await endpoints(harness)
    slow.reply = always(OK)
    goes_out(made[0], silent=True)
    goes_out(made[1])
    await dead.stop()
    made[1].record_check("b refused the connection", silent=True, unconnected=True)
    for method in (b"GET", b"DELETE"):
        assert await status_of(harness, method) == 200
    assert not made[0].ready


async def test_with_no_endpoint_that_was_ready_it_is_503_at_once(harness: Harness) -> None:
    starting = harness.upstream()
    starting.reply = always(OK)
    await harness.serve(config([cluster(starting.endpoint("a"))]))
    made = await endpoints(harness)
    goes_out(made[0])
    made[0].health.may_serve = False
    client = await harness.asks(get())
    await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
    assert client.answer()[0] == 503
    assert not starting.received


async def test_requests_that_find_the_last_endpoint_dead_are_503_and_the_next_ones_do_not_ask(harness: Harness) -> None:
    upstream = harness.upstream()
    await harness.serve(config([cluster(upstream.endpoint("a"))]))
    made = await endpoints(harness)
    goes_out(made[0], silent=True)
    await upstream.stop()
    for _ in range(2):
        assert await status_of(harness) == 503
        assert not made[0].health.may_serve


async def test_a_read_is_sent_to_one_endpoint_that_is_out_and_not_to_all(harness: Harness) -> None:
    first, second, third = (harness.upstream() for _ in range(3))
    await harness.serve(
        config([cluster(*(each.endpoint(name) for each, name in zip((first, second, third), "abc", strict=True)))])
    )
    made = await endpoints(harness)
    for endpoint in made:
        goes_out(endpoint)
    for upstream in (first, second, third):
        upstream.reply = lambda end: end.abort()
    client = await harness.asks(get())
    await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
    assert client.answer()[0] in (502, 503)
    assert sum(bool(upstream.received) for upstream in (first, second, third)) <= 2
