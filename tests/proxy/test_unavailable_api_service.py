"""Requests to an API service whose probes fail: 503 with the reason, before the body and after authorization."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.apiservices.availability import Registration
from mcproxy.config import model
from tests.dispatch.builders import rule
from tests.proxy.harness import NAME, OK, Harness, Upstream, always, cluster, config, get

ALICE, BOB = b"Authorization: Bearer alice", b"Authorization: Bearer bob"
ZOO = Registration("zoo.io", "v1", "zoo")
LIST = b"/apis/zoo.io/v1/animals"
DISCOVERY = b"GET /apis/zoo.io/v1 HTTP/1.1\r\n"


def reply(status: bytes) -> Any:
    return always(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)


async def served(harness: Harness) -> tuple[Upstream, Upstream]:
    core, zoo = harness.upstream(), harness.upstream()
    core.reply, zoo.reply = always(OK), reply(b"503 Service Unavailable")
    await serve(harness, core, zoo)
    return core, zoo


async def serve(harness: Harness, core: Upstream, zoo: Upstream, **fields: Any) -> None:
    server = model.Server(
        name="main",
        listeners=("tls",),
        server_names=(NAME,),
        backend=model.ClusterBackend("east"),
        authentication="users",
        authorization="some",
        api_services=(model.APIService(group="zoo.io", version="v1", cluster="zoo", authority="east"),),
        **fields,
    )
    tokens = tuple(model.StaticToken(model.Secret(name), name) for name in ("alice", "bob"))
    await harness.serve(
        config(
            [cluster(core.endpoint()), cluster(zoo.endpoint(), name="zoo")],
            (server,),
            authentication=(model.Authentication(name="users", token_file=model.TokenFileConfig("t", tokens)),),
            authorization=(model.Authorization(name="some", rules=(rule(users=("alice",)),)),),
            logging=model.Logging(access=model.AccessLogConfig()),
        )
    )


async def unavailable(harness: Harness) -> None:
    known = harness.service._availability.known
    await harness.until(lambda: known.refuses(ZOO), "the API service is unavailable")


async def answer(harness: Harness, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    client = await harness.asks(raw)
    await harness.until(lambda: client.received, "the answer")
    return client.answer()


async def test_its_requests_get_503_with_the_reason_and_others_are_untouched(harness: Harness) -> None:
    _, zoo = await served(harness)
    await unavailable(harness)
    assert DISCOVERY in zoo.received
    status, fields, body = await answer(harness, get(LIST, ALICE))
    found = json.loads(body)
    assert (status, found["reason"]) == (503, "ServiceUnavailable")
    assert fields["retry-after"] == "1"
    where = "zoo/a on /apis/zoo.io/v1"
    assert found["message"] == (
        "the API service v1.zoo.io is unavailable: FailedDiscoveryCheck: "
        f"failing or missing response from {where}: bad status from {where}: 503"
    )
    assert harness.records[-1].reason == "api_service_unavailable"
    assert LIST not in zoo.received
    assert (await answer(harness, get(b"/api/v1/pods", ALICE)))[0] == 200


@pytest.mark.parametrize(("field", "status"), [(b"X: y", 401), (BOB, 403)])
async def test_who_may_not_ask_learns_nothing(harness: Harness, field: bytes, status: int) -> None:
    await served(harness)
    await unavailable(harness)
    found = await answer(harness, get(LIST, field))
    assert found[0] == status
    assert b"unavailable" not in found[2]


async def test_the_body_of_a_write_is_not_waited_for(harness: Harness) -> None:
    await served(harness)
    await unavailable(harness)
    raw = get(LIST, ALICE, b"Content-Length: 1000000", b"Content-Type: application/json", method=b"POST")
    assert (await answer(harness, raw))[0] == 503


async def test_requests_pass_while_nothing_is_known_and_as_soon_as_it_is_back(harness: Harness) -> None:
    core, zoo = harness.upstream(), harness.upstream()
    core.reply = always(OK)
    await serve(harness, core, zoo)  # its API server does not answer the probe
    client = await harness.asks(get(LIST, ALICE))
    await harness.until(lambda: LIST in zoo.received, "the request at the API server")
    client.abort()
    zoo.forget()
    zoo.reply = reply(b"404 Not Found")
    known = harness.service._availability.known
    zoo_endpoint = harness.service.runtime.clusters["zoo"].endpoints[0]  # type: ignore[union-attr]
    await zoo.stop()
    await harness.until(lambda: known.refuses(ZOO), "the API service is unavailable")
    assert zoo_endpoint is not None


@pytest.mark.parametrize("status", [b"302 Found", b"401 Unauthorized", b"403 Forbidden", b"429 Too Many Requests"])
async def test_only_2xx_is_available(harness: Harness, status: bytes) -> None:
    core, zoo = harness.upstream(), harness.upstream()
    core.reply, zoo.reply = always(OK), reply(status)
    await serve(harness, core, zoo)
    await unavailable(harness)
    assert (await answer(harness, get(LIST, ALICE)))[0] == 503


async def test_a_reload_keeps_what_is_known(harness: Harness) -> None:
    core, zoo = await served(harness)
    await unavailable(harness)
    before = harness.service._availability.known.get(ZOO)
    await serve(harness, core, zoo, access_log=False)
    assert harness.service._availability.known.get(ZOO) == before
    assert (await answer(harness, get(LIST, ALICE)))[0] == 503


async def test_it_is_shown_in_figures_and_readiness_and_the_proxy_is_ready(harness: Harness) -> None:
    await served(harness)
    await unavailable(harness)
    (figure,) = harness.service.figures["apiServices"]
    assert {key: figure[key] for key in ("name", "cluster", "usedBy", "available", "reason")} == {
        "name": "v1.zoo.io",
        "cluster": "zoo",
        "usedBy": ["main"],
        "available": "False",
        "reason": "FailedDiscoveryCheck",
    }
    checks = {check.name: check for check in harness.service.checks()}
    assert checks["apiservice/v1.zoo.io"] == ("apiservice/v1.zoo.io", "its probes fail", False)
