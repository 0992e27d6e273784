"""APIService objects where the backend is an aggregate: the aggregate is asked as for the client itself."""

from __future__ import annotations

import json
from typing import Any

from mcproxy.aggregate.request import AggregatedRequest
from mcproxy.config import model
from mcproxy.kube.status import StatusError
from tests.proxy.harness import Harness, get
from tests.proxy.test_aggregate_requests import ALICE, NAMES, USERS, Bench
from tests.proxy.test_api_service_objects import PATH, answer, listed, names

SERVICES = (model.APIService(group="zoo.io", version="v1", cluster="east", authority="east"),)


async def served(harness: Harness) -> Bench:
    bench = Bench(harness)
    vars(bench.fleet)["documents"] = lambda server, aggregate, visibility: bench.handler
    aggregate = model.Aggregate(name="fleet", clusters=NAMES)
    await bench.serve(fields={"api_services": SERVICES}, more={"aggregates": (aggregate,), "authentication": (USERS,)})
    return bench


async def test_a_list_has_the_aggregates_and_ours(harness: Harness) -> None:
    bench = await served(harness)
    seen: list[tuple[bytes, bytes | None, tuple[str, ...], str]] = []

    async def tell(request: AggregatedRequest) -> None:
        seen.append((request.target, request.head.header(b"accept"), request.members, request.user_for("east").name))
        body = json.dumps(listed("v1.", "v1.zoo.io")).encode()
        request.exchange.answer(200, request.own_fields(b"Content-Type: application/json\r\n"), body)

    bench.handler.answer = tell
    status, _, found = await answer(harness, get(PATH + b"?limit=1", ALICE, b"Accept: application/json"))
    assert (status, names(found)) == (200, ["v1.", "v1.zoo.io"])
    assert found["items"][1]["metadata"]["labels"]
    assert seen == [(PATH, b"application/json", ("east", "west"), "alice")]


async def test_a_refusal_of_the_aggregate_is_the_answer(harness: Harness) -> None:
    bench = await served(harness)

    async def refuse(request: AggregatedRequest) -> None:
        raise StatusError(403, "not for you")

    bench.handler.answer = refuse
    for target in (PATH, PATH + b"/v1.zoo.io"):
        status, _, found = await answer(harness, get(target, ALICE))
        assert (status, found["message"]) == (403, "not for you")


async def test_a_member_below_its_path_has_its_own_objects(harness: Harness) -> None:
    bench = await served(harness)
    bench.upstreams["east"].forget()
    client = await harness.asks(get(b"/clusters/east" + PATH, ALICE))
    await harness.until(lambda: PATH in bench.upstreams["east"].received, "the request at the member")
    client.abort()
    assert not bench.handler.requests


async def test_a_write_to_one_of_ours_is_reviewed_by_the_aggregate(harness: Harness) -> None:
    bench = await served(harness)
    asked: list[Any] = []

    async def review(request: AggregatedRequest) -> None:
        asked.append((request.info.verb, request.info.resource))
        body = b'{"status":{"allowed":true}}'
        request.exchange.answer(201, request.own_fields(b"Content-Type: application/json\r\n"), body)

    bench.handler.answer = review
    status, _, found = await answer(harness, get(PATH + b"/v1.zoo.io", ALICE, method=b"DELETE"))
    assert (status, found["reason"]) == (405, "MethodNotAllowed")
    assert asked == [("create", "selfsubjectaccessreviews")]
