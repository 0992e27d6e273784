"""What a reload keeps of everything whose configuration did not change: health, turns, buckets, counts."""

from __future__ import annotations

import dataclasses
from typing import Any

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, Strategy
from mcproxy.upstream.endpoint import Endpoint
from tests.dispatch.builders import policy, rule
from tests.proxy import conftest
from tests.proxy.harness import OK, Client, Harness, Upstream, always, cluster, config, get

reactor, harness = conftest.reactor, conftest.harness

PODS, NODES = b"/api/v1/pods", b"/api/v1/nodes"
POD_RULE = rule(resources=("pods",), non_resource_urls=())
INFLIGHT, BUCKET = FlowControlType.MAX_REQUESTS_INFLIGHT, FlowControlType.TOKEN_BUCKET


def configuration(
    *endpoints: model.EndpointConfig,
    policies: tuple[model.Policy, ...] = (policy("pods", POD_RULE), policy("rest", rule())),
    flow_controls: tuple[FlowControl, ...] = (),
    **fields: Any,
) -> model.Config:
    server = model.Server(
        name="main", listeners=("tls",), default=True, backend=model.ClusterBackend("east"), dispatch=policies
    )
    return config([cluster(*endpoints, **fields)], [server], flow_controls=flow_controls)


def live(harness: Harness) -> tuple[Endpoint, ...]:
    runtime = harness.service.runtime
    assert runtime is not None
    return runtime.clusters["east"].endpoints


async def three(harness: Harness) -> list[Upstream]:
    upstreams = [harness.upstream() for _ in range(3)]
    for upstream in upstreams:
        upstream.reply = always(OK)
    return upstreams


async def ready(harness: Harness) -> None:
    await harness.until(lambda: all(endpoint.ready for endpoint in live(harness)), "readiness")


async def status(harness: Harness, target: bytes = PODS) -> int:
    client = await harness.asks(get(target))
    await harness.until(lambda: client.received.endswith((b"{}", b"}\n")), "the answer")
    return client.answer()[0]


async def held(harness: Harness, upstream: Upstream, target: bytes = PODS) -> Client:
    """A request that its upstream has and does not answer."""
    upstream.reply = None
    before = len(upstream.received)
    client = await harness.asks(get(target))
    await harness.until(lambda: len(upstream.received) > before, "the request")
    return client


def turn(upstreams: list[Upstream]) -> str:
    """Who was asked, once each, in letters; they forget it."""
    asked = "".join(name for name, upstream in zip("abc", upstreams, strict=True) if upstream.received)
    for upstream in upstreams:
        upstream.forget()
        upstream.reply = always(OK)
    return asked


class TestHealth:
    async def test_of_an_endpoint_outlasts_what_changes_beside_it(self, harness: Harness) -> None:
        upstreams = await three(harness)
        a, b, c = (each.endpoint(name) for each, name in zip(upstreams, "abc", strict=True))
        await harness.serve(configuration(a, b))
        await ready(harness)
        before = live(harness)
        for _ in range(3):
            before[0].record_check("down")
        before[1].record_check("down")
        changed = [
            configuration(a, b, c),
            configuration(dataclasses.replace(a, name="x", weight=7), b, c),
            configuration(b, a, preserve_host=True),
            configuration(a, b, health_check=model.HealthCheck(path="/readyz-check", interval=1800.0)),
            configuration(a, b, policies=(policy("one", rule(), strategy=Strategy.CONSISTENT_HASH),)),
        ]
        for next_one in changed:
            await harness.serve(next_one)
            kept = {endpoint.config.port: endpoint for endpoint in live(harness)}
            assert kept[a.port] is before[0]
            assert kept[b.port] is before[1]
            assert (before[0].ready, before[1].ready) == (False, True)
            assert before[0].state_message.startswith("down (out for ")
        before[1].record_check("down")
        before[1].record_check("down")
        assert not before[1].ready  # with the first failure, which was counted under the first configuration

    async def test_of_one_that_is_enabled_again_is_known(self, harness: Harness) -> None:
        upstreams = await three(harness)
        a, b, _ = (each.endpoint(name) for each, name in zip(upstreams, "abc", strict=True))
        await harness.serve(configuration(a, b))
        await ready(harness)
        await harness.serve(configuration(dataclasses.replace(a, disabled=True), b))
        assert [endpoint.ready for endpoint in live(harness)] == [False, True]
        await harness.serve(configuration(a, b))
        assert [endpoint.ready for endpoint in live(harness)] == [True, True]


class TestTurns:
    async def test_each_policy_goes_on_where_it_was_however_many_reloads_there_were(self, harness: Harness) -> None:
        upstreams = await three(harness)
        endpoints = [each.endpoint(name) for each, name in zip(upstreams, "abc", strict=True)]
        await harness.serve(configuration(*endpoints))
        await ready(harness)
        assert await status(harness, NODES) == 200
        turn(upstreams)
        asked = ""
        for number in range(4):
            assert await status(harness) == 200
            asked += turn(upstreams)
            await harness.serve(configuration(*endpoints, preserve_host=number % 2 == 0))
            await harness.serve(configuration(*endpoints, policies=(policy("pods", POD_RULE), policy("rest", rule()))))
        assert asked == "abca"
        assert await status(harness, NODES) == 200
        assert turn(upstreams) == "b"

    async def test_a_policy_that_is_new_or_of_another_strategy_begins_anew(self, harness: Harness) -> None:
        upstreams = await three(harness)
        endpoints = [each.endpoint(name) for each, name in zip(upstreams, "abc", strict=True)]
        await harness.serve(configuration(*endpoints, policies=(policy("one", rule()),)))
        await ready(harness)
        await status(harness)
        await harness.serve(configuration(*endpoints, policies=(policy("other", rule()),)))
        turn(upstreams)
        await status(harness)
        assert turn(upstreams) == "a"

    async def test_requests_in_flight_still_count_for_the_least_busy(self, harness: Harness) -> None:
        upstreams = await three(harness)
        endpoints = [each.endpoint(name) for each, name in zip(upstreams, "abc", strict=True)]
        least = (policy("least", rule(), strategy=Strategy.LEAST_REQUESTS),)
        await harness.serve(configuration(*endpoints, policies=least))
        await ready(harness)
        await held(harness, upstreams[0])
        await harness.serve(configuration(*endpoints, policies=least, preserve_host=True))
        asked = ""
        for _ in range(4):
            for upstream in upstreams[1:]:
                upstream.forget()
                upstream.reply = always(OK)
            await status(harness)
            asked += "".join(name for name, each in zip("bc", upstreams[1:], strict=True) if each.received)
        assert sorted(asked) == ["b", "b", "c", "c"]


class TestLimits:
    async def test_a_bucket_keeps_its_level_and_a_smaller_one_is_cut(self, harness: Harness) -> None:
        upstream, *_ = await three(harness)
        bucket = FlowControl(name="bulk", type=BUCKET, qps=0.001, burst=6)

        async def serve(flow: FlowControl, **fields: Any) -> None:
            policies = (policy("all", rule(), flow_control="bulk"),)
            await harness.serve(configuration(upstream.endpoint(), policies=policies, flow_controls=(flow,), **fields))

        await serve(bucket)
        assert [await status(harness) for _ in range(2)] == [200, 200]
        await serve(bucket, preserve_host=True)  # four are left
        assert await status(harness) == 200
        await serve(dataclasses.replace(bucket, burst=2))  # of three, two are left
        assert [await status(harness) for _ in range(3)] == [200, 200, 429]
        await serve(dataclasses.replace(bucket, burst=9))  # a larger one is not filled by that
        assert await status(harness) == 429

    async def test_those_under_way_go_on_counting_against_the_new_maximum(self, harness: Harness) -> None:
        upstream, *_ = await three(harness)
        few = FlowControl(name="few", type=INFLIGHT, max=1)

        async def serve(maximum: int, **fields: Any) -> None:
            policies = (policy("all", rule(), flow_control="few"),)
            flow = dataclasses.replace(few, max=maximum)
            await harness.serve(configuration(upstream.endpoint(), policies=policies, flow_controls=(flow,), **fields))

        await serve(1)
        clients = [await held(harness, upstream)]
        await serve(1, preserve_host=True)
        assert await status(harness) == 429
        await serve(3)
        clients += [await held(harness, upstream), await held(harness, upstream)]
        assert await status(harness) == 429
        await serve(2)
        assert await status(harness) == 429
        clients.pop().abort()
        await harness.turns()
        assert await status(harness) == 429  # two are under way, as many as may be
        clients.pop().abort()
        await harness.turns()
        clients.append(await held(harness, upstream))
        assert await status(harness) == 429
