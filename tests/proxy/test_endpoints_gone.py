"""Requests whose endpoint hangs or is removed before it answers: those that can be asked elsewhere are."""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.upstream.endpoint import Endpoint
from tests.proxy.stage import OK, Stage, always, cluster, config, get

ONE_CONNECTION = model.Connections(max_connections=1)


async def endpoints(stage: Stage) -> tuple[Endpoint, ...]:
    """The live endpoints, once all of them are ready."""
    runtime = stage.service.runtime
    assert runtime is not None
    made = runtime.clusters["east"].endpoints
    await stage.until(lambda: all(endpoint.ready for endpoint in made), "readiness")
    return made


def goes_out(endpoint: Endpoint) -> None:
    for _ in range(3):
        endpoint.record_check("no answer")


async def test_a_read_is_asked_elsewhere_when_its_endpoint_goes_out_without_an_answer(stage: Stage) -> None:
    hung, well = stage.upstream(), stage.upstream()
    await stage.serve(config([cluster(hung.endpoint("a"), well.endpoint("b"))]))
    made = await endpoints(stage)
    well.reply = always(OK)
    client = await stage.asks(get())
    await stage.until(lambda: hung.received, "the request")
    goes_out(made[0])
    await stage.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200
    assert [endpoint.in_flight for endpoint in made] == [0, 0]


async def test_a_write_stays_where_it_was_sent(stage: Stage) -> None:
    hung, well = stage.upstream(), stage.upstream()
    await stage.serve(config([cluster(hung.endpoint("a"), well.endpoint("b"))]))
    made = await endpoints(stage)
    client = await stage.asks(get(method=b"DELETE"))
    await stage.until(lambda: hung.received, "the request")
    goes_out(made[0])
    await stage.turns()
    assert not well.received
    hung.last.send(OK)
    await stage.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200


async def test_a_read_that_can_be_asked_nowhere_else_waits_on(stage: Stage) -> None:
    hung = stage.upstream()
    await stage.serve(config([cluster(hung.endpoint("a"))]))
    made = await endpoints(stage)
    client = await stage.asks(get())
    await stage.until(lambda: hung.received, "the request")
    goes_out(made[0])
    await stage.turns()
    hung.last.send(OK)
    await stage.until(lambda: client.received, "the answer")
    assert client.answer()[0] == 200


async def test_who_waits_for_a_connection_to_a_removed_endpoint_goes_to_another(stage: Stage) -> None:
    goes, stays = stage.upstream(), stage.upstream()
    await stage.serve(config([cluster(goes.endpoint("a"), stays.endpoint("b"), connections=ONE_CONNECTION)]))
    await endpoints(stage)
    first = await stage.asks(get())
    await stage.until(lambda: goes.received, "the first")
    second = await stage.asks(get())
    await stage.until(lambda: stays.received, "the second")
    third = await stage.asks(get(b"/third", method=b"POST"))  # in the queue of the one that goes
    await stage.turns()
    await stage.serve(config([cluster(stays.endpoint("b"), connections=ONE_CONNECTION)]))
    stays.last.send(OK)
    await stage.until(lambda: b"/third" in stays.received, "the third")
    stays.last.send(OK)
    goes.last.send(OK)
    await stage.until(lambda: first.received and second.received and third.received, "all answers")
    assert [client.answer()[0] for client in (first, second, third)] == [200, 200, 200]
    assert b"/third" not in goes.received


async def test_who_waits_for_a_connection_to_a_removed_cluster_is_refused(stage: Stage) -> None:
    goes, other = stage.upstream(), stage.upstream()
    await stage.serve(config([cluster(goes.endpoint("a"), connections=ONE_CONNECTION)]))
    await endpoints(stage)
    first = await stage.asks(get())
    await stage.until(lambda: goes.received, "the first")
    second = await stage.asks(get(b"/second"))
    await stage.turns()
    await stage.serve(config([cluster(other.endpoint("b"), name="other")]))
    await stage.until(lambda: second.received, "the refusal")
    status, fields, body = second.answer()
    assert (status, fields["retry-after"]) == (503, "5")
    assert b"a: removed from the configuration" in body
    goes.last.send(OK)
    await stage.until(lambda: first.received, "the answer")
    assert first.answer()[0] == 200
    assert b"/second" not in goes.received
