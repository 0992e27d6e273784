"""Attempts to escape limits: by headers that call for an upgrade, and by reviews that are not paid for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, Queue, UpstreamIdentity
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import OK, Client, Harness, Upstream, UpstreamEnd, always, cluster, config, get

INFLIGHT = FlowControlType.MAX_REQUESTS_INFLIGHT
POD = b"/api/v1/namespaces/demo/pods/web"
CONSOLE = b"/apis/subresources.kubevirt.io/v1/namespaces/demo/virtualmachineinstances/vm/console"
UPGRADES = [b"websocket", b"SPDY/3.1"]
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: SPDY/3.1")


async def limited(harness: Harness, limit: FlowControl, **cluster_fields: Any) -> Upstream:
    upstream = harness.upstream()
    server = model.Server(
        name="east",
        listeners=("tls",),
        default=True,
        backend=model.ClusterBackend("east"),
        dispatch=(policy("all", rule(), flow_control=limit.name),),
    )
    await harness.serve(
        config([cluster(upstream.endpoint(), **cluster_fields)], servers=[server], flow_controls=(limit,))
    )
    return upstream


def control(harness: Harness, name: str) -> Any:
    runtime = harness.service.runtime
    assert runtime is not None
    return runtime.flow_controls.controls[name]


class TestUpgradeHeaders:
    @pytest.mark.parametrize("protocol", UPGRADES)
    async def test_they_do_not_escape_the_maximum_of_short_requests(self, harness: Harness, protocol: bytes) -> None:
        upstream = await limited(harness, FlowControl(name="two", type=INFLIGHT, max=2))
        clients = [await harness.asks(get(POD, b"Connection: Upgrade", b"Upgrade: " + protocol)) for _ in range(10)]

        def refused() -> int:
            return sum(each.received.startswith(b"HTTP/1.1 429 ") for each in clients)

        await harness.until(lambda: refused() == 8, "eight refusals")
        await harness.until(lambda: upstream.received.count(b"GET ") == 2, "two requests")
        assert control(harness, "two").in_use == 2
        for end in upstream.connections:
            end.send(OK)
        await harness.until(lambda: all(each.received for each in clients), "answers")
        await harness.until(lambda: control(harness, "two").in_use == 0, "the permits' return")

    @pytest.mark.parametrize("protocol", UPGRADES)
    async def test_they_do_not_escape_the_response_timeout(self, harness: Harness, protocol: bytes) -> None:
        connections = model.Connections(response_timeout=1.0)
        await limited(harness, FlowControl(name="two", type=INFLIGHT, max=2), connections=connections)
        client = await harness.asks(get(CONSOLE, b"Connection: Upgrade", b"Upgrade: " + protocol))
        await harness.until(lambda: client.received, "an answer")
        assert client.answer()[0] == 504

    async def test_what_asks_for_a_tunnel_has_no_response_timeout(self, harness: Harness) -> None:
        connections = model.Connections(response_timeout=1.0)
        upstream = await limited(harness, FlowControl(name="two", type=INFLIGHT, max=2), connections=connections)
        client = await harness.asks(get(POD + b"/exec?command=sh", *UPGRADE, method=b"POST"))
        await harness.until(lambda: upstream.received.endswith(b"\r\n\r\n"), "the request")
        now = harness.reactor.seconds()
        await harness.until(lambda: harness.reactor.seconds() > now + 1.5, "more than the timeout")
        assert not client.received
        upstream.last.send(SWITCH)
        await harness.until(lambda: client.received.startswith(b"HTTP/1.1 101 "), "the tunnel")

    async def test_an_upgraded_request_counts_as_long_running_from_the_101_on(self, harness: Harness) -> None:
        upstream = await limited(harness, FlowControl(name="few", type=INFLIGHT, max=1, max_long_running=1))
        first = await harness.asks(get(CONSOLE, *UPGRADE))
        await harness.until(lambda: upstream.received.endswith(b"\r\n\r\n"), "the request")
        counts = control(harness, "few")
        assert (counts.in_use, counts.in_use_long_running) == (1, 0)
        upstream.last.send(SWITCH)
        await harness.until(lambda: first.received.startswith(b"HTTP/1.1 101 "), "the tunnel")
        assert (counts.in_use, counts.in_use_long_running) == (0, 1)
        # A second one is sent, since there is room for a short request, but no tunnel is opened.
        second = await harness.asks(get(CONSOLE, *UPGRADE))
        await harness.until(lambda: upstream.received.count(b"GET ") == 2, "the second request")
        end = upstream.last
        end.send(SWITCH + b"secret of the console")
        await harness.until(lambda: second.received, "the refusal")
        code, fields, body = second.answer()
        assert (code, json.loads(body)["reason"]) == (429, "TooManyRequests")
        assert "upgrade" not in fields
        assert b"secret" not in second.received
        await harness.until(lambda: end.over, "the end of the tunnel that was not opened")
        assert (counts.in_use, counts.in_use_long_running) == (0, 1)
        first.abort()
        await harness.until(lambda: counts.in_use_long_running == 0, "the permit's return")


ALICE, BOB = b"Authorization: Bearer alice", b"Authorization: Bearer bob"
USERS = model.Authentication(
    name="users",
    token_file=model.TokenFileConfig(
        "users.csv", tuple(model.StaticToken(model.Secret(name), name) for name in ("alice", "bob"))
    ),
)
REVIEWED = model.Authorization(
    name="reviewed", subject_access_review=model.SubjectAccessReview(cluster="judge", cache_allowed=0, cache_denied=0)
)


class Reviewed:
    """A server whose authorizer asks the cluster `judge`, with one limit for its requests."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.judge, self.east = harness.upstream(), harness.upstream()
        self.east.reply = always(OK)
        self.reviews: list[UpstreamEnd] = []
        self.judge.reply = self._asked

    async def serve(self, limit: FlowControl, *first: model.Policy) -> None:
        own: dict[str, Any] = {
            "identity": UpstreamIdentity.IMPERSONATE,
            "credentials": model.Credentials(token=model.Secret("own")),
        }
        server = model.Server(
            name="east",
            listeners=("tls",),
            default=True,
            backend=model.ClusterBackend("east"),
            authentication="users",
            authorization="reviewed",
            dispatch=(*first, policy("all", rule(resources=("pods",), non_resource_urls=()), flow_control=limit.name)),
        )
        await self.harness.serve(
            config(
                [cluster(self.judge.endpoint("j"), name="judge", **own), cluster(self.east.endpoint(), **own)],
                servers=[server],
                authentication=(USERS,),
                authorization=(REVIEWED,),
                flow_controls=(limit,),
            )
        )

    def _asked(self, end: UpstreamEnd) -> None:
        if b"subjectaccessreviews" in end.received and end.received.endswith(b"}") and end not in self.reviews:
            self.reviews.append(end)

    def decide(self, allowed: bool) -> None:
        """Answer the oldest review."""
        end = self.reviews.pop(0)
        end.received = b""
        body = json.dumps({"kind": "SubjectAccessReview", "status": {"allowed": allowed}}).encode()
        end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def asks(self, *who: bytes, target: bytes = POD) -> Client:
        return await self.harness.asks(get(target, *who))

    async def until_reviews(self, count: int) -> None:
        await self.harness.until(lambda: len(self.reviews) == count, f"{count} reviews")


class TestReviewsArePaidFor:
    async def test_no_review_is_sent_for_a_request_over_its_limit(self, harness: Harness) -> None:
        proxy = Reviewed(harness)
        await proxy.serve(FlowControl(name="each", type=INFLIGHT, max=2, per=model.Per.USER))
        flood = [await proxy.asks(ALICE, target=POD + b"%d" % number) for number in range(10)]
        await proxy.until_reviews(2)
        await harness.until(lambda: sum(each.received[9:12] == b"429" for each in flood) == 8, "eight refusals")
        other = await proxy.asks(BOB)
        await proxy.until_reviews(3)  # nobody stands before bob
        for _ in range(3):
            proxy.decide(True)
        await harness.until(lambda: other.received.endswith(b"{}"), "the answer")

    async def test_a_permit_of_somebody_who_is_refused_is_given_back_at_once(self, harness: Harness) -> None:
        proxy = Reviewed(harness)
        await proxy.serve(FlowControl(name="one", type=INFLIGHT, max=1, queue=Queue(size=5, timeout=60.0)))
        first, second = await proxy.asks(ALICE), await proxy.asks(BOB)
        await proxy.until_reviews(1)
        assert control(harness, "one").in_use == 1
        proxy.decide(False)
        await harness.until(lambda: first.received[9:12] == b"403", "the refusal")
        await proxy.until_reviews(1)  # the second's turn
        assert control(harness, "one").in_use == 1
        proxy.decide(True)
        await harness.until(lambda: second.received.endswith(b"{}"), "the answer")
        await harness.until(lambda: control(harness, "one").in_use == 0, "the permit's return")

    async def test_a_client_that_leaves_during_its_review_gives_its_permit_back(self, harness: Harness) -> None:
        proxy = Reviewed(harness)
        await proxy.serve(FlowControl(name="one", type=INFLIGHT, max=1))
        client = await proxy.asks(ALICE)
        await proxy.until_reviews(1)
        client.abort()
        await harness.until(lambda: control(harness, "one").in_use == 0, "the permit's return")
        assert b"GET " not in proxy.east.received

    async def test_what_no_policy_matches_or_one_rejects_costs_no_review(self, harness: Harness) -> None:
        proxy = Reviewed(harness)
        nodes = rule(resources=("nodes",), non_resource_urls=())
        reject = policy("nodes", nodes, reject=model.Reject(code=403, message="no nodes"))
        await proxy.serve(FlowControl(name="one", type=INFLIGHT, max=1), reject)
        for target, words in ((b"/api/v1/nodes", "no nodes"), (b"/version", "no dispatch policy")):
            client = await proxy.asks(ALICE, target=target)
            await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")  # noqa: B023
            assert words in json.loads(client.answer()[2])["message"]
        assert proxy.reviews == []


async def test_whoever_fills_a_queue_makes_room_for_others(harness: Harness) -> None:
    upstream = harness.upstream()
    limit = FlowControl(name="one", type=INFLIGHT, max=1, queue=Queue(size=3, timeout=120.0))
    own: dict[str, Any] = {
        "identity": UpstreamIdentity.IMPERSONATE,
        "credentials": model.Credentials(token=model.Secret("own")),
        "flow_controls": ("one",),
    }
    server = model.Server(
        name="east",
        listeners=("tls",),
        default=True,
        backend=model.ClusterBackend("east"),
        authentication="users",
    )
    await harness.serve(
        config([cluster(upstream.endpoint(), **own)], [server], authentication=(USERS,), flow_controls=(limit,))
    )
    flood = []
    for number in range(6):  # one in flight, three in the queue, two refused
        flood.append(await harness.asks(get(POD + b"%d" % number, ALICE)))
        await harness.until(lambda: upstream.received, "the first request")
        waiting = min(number, 3)
        await harness.until(lambda: control(harness, "one").waiting == waiting, "its place")  # noqa: B023
        await harness.until(lambda: len(flood) < 5 or flood[-1].received, "its refusal")
    assert [client.received[9:12] for client in flood] == [b"", b"", b"", b"", b"429", b"429"]
    other = await harness.asks(get(POD, BOB))
    await harness.until(lambda: flood[3].received, "the refusal of the newest")
    assert flood[3].received[9:12] == b"429"
    upstream.reply = always(OK)
    upstream.last.send(OK)
    upstream.last.answered = 1
    await harness.until(lambda: other.received.endswith(b"{}"), "bob's answer")
    await harness.until(lambda: all(client.received for client in flood), "all answers")
    assert [client.received[9:12] for client in flood] == [b"200"] * 3 + [b"429"] * 3
