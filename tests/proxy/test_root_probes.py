"""/healthz, /readyz and /livez at the root of servers where they are the proxy's own view."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.aggregate.request import AggregatedRequest
from mcproxy.apiservices.availability import Registration, failure
from mcproxy.config import model
from tests.dispatch.builders import rule
from tests.proxy.harness import NAME, OK, Harness, always, cluster, config, get
from tests.proxy.test_aggregate_requests import ALICE
from tests.proxy.test_api_service_objects_of_aggregates import served as served_aggregate

ZOO = Registration("zoo.io", "v1", "zoo")
SERVICES = (model.APIService(group="zoo.io", version="v1", cluster="zoo", authority="east"),)


async def serve(harness: Harness, backend: model.Backend, *, users: tuple[str, ...] = (), **fields: Any) -> None:
    upstreams = {name: harness.upstream() for name in ("east", "west", "zoo")}
    for upstream in upstreams.values():
        upstream.reply = always(OK)
    clusters = [cluster(upstream.endpoint(), name=name) for name, upstream in upstreams.items()]
    server = model.Server(name="main", listeners=("tls",), server_names=(NAME,), backend=backend, **fields)
    tokens = tuple(model.StaticToken(model.Secret(name), name) for name in ("alice", "bob"))
    more: dict[str, Any] = {}
    if users:
        more["authentication"] = (model.Authentication(name="users", token_file=model.TokenFileConfig("t", tokens)),)
        rules = (rule(users=users, resources=(), non_resource_urls=("/readyz",)),)
        more["authorization"] = (model.Authorization(name="some", rules=rules),)
    await harness.serve(config(clusters, (server,), **more))
    runtime = harness.service.runtime
    assert runtime is not None
    await harness.until(lambda: all(each.endpoints[0].ready for each in runtime.clusters.values()), "readiness")


async def ask(harness: Harness, target: bytes, *fields: bytes, method: bytes = b"GET") -> tuple[int, str]:
    client = await harness.asks(get(target, *fields, method=method))
    await harness.until(lambda: b"\r\n\r\n" in client.received, "the answer")
    status, _, body = client.answer()
    return status, body.decode()


def take_out(harness: Harness, *names: str) -> None:
    runtime = harness.service.runtime
    assert runtime is not None
    for name in names:
        for _ in range(3):
            runtime.clusters[name].endpoints[0].record_check("connection refused")


async def test_a_server_of_several_clusters(harness: Harness) -> None:
    await serve(harness, model.ClustersBackend(("east", "west")))
    for probe in (b"/healthz", b"/readyz", b"/livez"):
        assert await ask(harness, probe) == (200, "ok")
    take_out(harness, "west")
    assert await ask(harness, b"/readyz?verbose") == (
        200,
        "[+]ping ok\n[+]cluster/east ok\n[-]cluster/west not needed: none of its 1 endpoints is ready\n"
        "readyz check passed\n",
    )
    take_out(harness, "east")
    assert (await ask(harness, b"/readyz"))[0] == 500
    assert await ask(harness, b"/livez") == (200, "ok")
    assert await ask(harness, b"/readyz/ping") == (200, "ok")
    assert (await ask(harness, b"/readyz/cluster/none"))[0] == 404
    assert (await ask(harness, b"/readyz", method=b"POST"))[0] == 405
    assert (await ask(harness, b"/readyz-not"))[0] == 404
    assert (await ask(harness, b"/clusters/zoo/readyz"))[0] == 404


async def test_a_server_of_one_cluster_with_api_services_is_ready_without_them(harness: Harness) -> None:
    await serve(harness, model.ClusterBackend("east"), api_services=SERVICES)
    known = harness.service._availability.known
    await harness.until(lambda: known.get(ZOO).status == "True", "the first probe, which succeeds")
    known.take(ZOO, failure("zoo/a", "10.0.0.1:443 refused the connection"))
    assert await ask(harness, b"/readyz") == (200, "ok")
    assert await ask(harness, b"/readyz?verbose") == (
        200,
        "[+]ping ok\n[+]cluster/east ok\n[-]apiservice/v1.zoo.io not needed: its probes fail\nreadyz check passed\n",
    )
    assert (await ask(harness, b"/readyz/apiservice/v1.zoo.io"))[0] == 500
    take_out(harness, "east")
    status, text = await ask(harness, b"/readyz")
    assert status == 500
    assert "[-]cluster/east failed: none of its 1 endpoints is ready\n" in text


async def test_a_server_of_one_cluster_alone_passes_probes_on(harness: Harness) -> None:
    await serve(harness, model.ClusterBackend("east"))
    assert await ask(harness, b"/readyz") == (200, "{}")


@pytest.mark.parametrize("backend", [model.ClustersBackend(("east", "west")), model.ClusterBackend("east")])
async def test_who_may_not_get_the_path_is_refused(harness: Harness, backend: model.Backend) -> None:
    services = SERVICES if isinstance(backend, model.ClusterBackend) else ()
    fields: dict[str, Any] = {"authentication": "users", "authorization": "some", "api_services": services}
    await serve(harness, backend, users=("alice",), **fields)
    assert await ask(harness, b"/readyz", ALICE) == (200, "ok")
    assert (await ask(harness, b"/readyz", b"Authorization: Bearer bob"))[0] == 403
    assert (await ask(harness, b"/readyz"))[0] == 401


async def test_an_aggregate_with_api_services(harness: Harness) -> None:
    bench = await served_aggregate(harness)

    async def probe(request: AggregatedRequest) -> None:
        verbose = b"verbose" in request.target
        text = b"[+]ping ok\n[+]cluster/east ok\nreadyz check passed\n" if verbose else b"ok"
        request.exchange.answer(200, request.own_fields(), text)

    bench.handler.answer = probe
    assert await ask(harness, b"/readyz", ALICE) == (200, "ok")
    status, text = await ask(harness, b"/readyz?verbose", ALICE)
    assert status == 200
    lines = text.splitlines()
    assert lines[:2] == ["[+]ping ok", "[+]cluster/east ok"]
    assert "]apiservice/v1.zoo.io" in lines[2]
    assert lines[3:] == ["readyz check passed"]
