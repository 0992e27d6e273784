"""What dispatch policies and flow control make of requests, over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, Queue, Strategy, UpstreamIdentity
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import OK, Client, Harness, Upstream, always, cluster, config, get, reviewing

PODS = b"/api/v1/namespaces/demo/pods"
NODES = b"/api/v1/nodes"
EVENTS = b"/api/v1/namespaces/demo/events"
INFLIGHT, BUCKET = FlowControlType.MAX_REQUESTS_INFLIGHT, FlowControlType.TOKEN_BUCKET
NOTHING = FlowControl(name="none", type=INFLIGHT, max=0)
TOKENS = model.TokenFileConfig(
    "users.csv",
    tuple(model.StaticToken(model.Secret(name), name, groups=("dev",)) for name in ("alice", "bob", "carol")),
)
ALLOWS_ALL = model.Authorization(name="all", rules=(rule(), rule(verbs=("impersonate",))))
USERS = model.Authentication(name="users", token_file=TOKENS)
EVENTS_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"


def server(*policies: model.Policy, backend: model.Backend | None = None, **fields: Any) -> model.Server:
    return model.Server(
        name="east",
        listeners=("tls",),
        default=True,
        backend=backend or model.ClusterBackend("east"),
        dispatch=policies,
        **fields,
    )


def pods(**more: Any) -> model.Policy:
    return policy("pods", rule(resources=("pods",), non_resource_urls=()), **more)


def rest(**more: Any) -> model.Policy:
    return policy("rest", rule(), **more)


async def two(harness: Harness) -> tuple[Upstream, Upstream]:
    upstreams = harness.upstream(), harness.upstream()
    for upstream in upstreams:
        upstream.reply = reviewing(always(OK), lambda _: True)
    return upstreams


async def ready(harness: Harness, name: str = "east") -> None:
    runtime = harness.service.runtime
    assert runtime is not None
    endpoints = runtime.clusters[name].endpoints
    await harness.until(lambda: all(endpoint.ready or endpoint.config.disabled for endpoint in endpoints), "readiness")


async def answered(harness: Harness, *request: Any, **how: Any) -> Client:
    client = await harness.asks(get(*request, **how))
    await harness.until(lambda: client.received.endswith((b"{}", b"}\n")), "the answer")
    return client


async def refusal(harness: Harness, *request: Any, **how: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    status, fields, body = (await answered(harness, *request, **how)).answer()
    return status, fields, json.loads(body)


class TestWhichPolicy:
    async def test_the_first_that_matches_and_no_other_when_it_lets_nothing_through(self, harness: Harness) -> None:
        a, b = await two(harness)
        await harness.serve(
            config(
                [cluster(a.endpoint("a"), b.endpoint("b"))],
                [server(pods(flow_control="none"), rest())],
                flow_controls=(NOTHING,),
            )
        )
        await ready(harness)
        assert (await refusal(harness, PODS))[0] == 429
        assert (await answered(harness, NODES)).answer()[0] == 200
        assert PODS not in a.received + b.received

    async def test_nor_when_it_has_no_ready_endpoint(self, harness: Harness) -> None:
        a, b = await two(harness)
        off = model.EndpointConfig(name="off", scheme="http", host="127.0.0.1", port=1, disabled=True)
        dead = model.EndpointConfig(name="dead", scheme="http", host="127.0.0.1", port=1)
        await harness.serve(
            config(
                [cluster(a.endpoint("a"), b.endpoint("b"), off, dead)],
                [server(pods(endpoints=("off", "dead")), rest(endpoints=("a", "b")))],
            )
        )
        runtime = harness.service.runtime
        assert runtime is not None
        await harness.until(lambda: runtime.clusters["east"].endpoints[3].health.cause, "the dead one's check")
        status, fields, body = await refusal(harness, PODS)
        assert (status, fields["retry-after"]) == (503, "5")
        assert body["reason"] == "ServiceUnavailable"
        assert body["details"] == {"retryAfterSeconds": 5}
        assert body["message"] == (
            'no endpoint of cluster "east" is ready: off: disabled; dead: 127.0.0.1:1 refused the connection'
        )
        assert (await answered(harness, NODES)).answer()[0] == 200

    async def test_none_is_403(self, harness: Harness) -> None:
        a, _ = await two(harness)
        await harness.serve(config([cluster(a.endpoint())], [server(pods())]))
        status, _, body = await refusal(harness, NODES)
        assert (status, body["reason"]) == (403, "Forbidden")
        assert 'no dispatch policy of server "east" matches' in body["message"]
        assert a.received == b""

    async def test_order_decides_and_not_how_exact_a_rule_is(self, harness: Harness) -> None:
        a, _ = await two(harness)
        await harness.serve(
            config([cluster(a.endpoint())], [server(rest(), pods(flow_control="none"))], flow_controls=(NOTHING,))
        )
        assert (await answered(harness, PODS)).answer()[0] == 200

    async def test_it_sees_the_user_after_impersonation(self, harness: Harness) -> None:
        a, b = await two(harness)
        policies = (
            policy("bobs", rule(users=("bob",)), endpoints=("b",)),
            policy("others", rule(), endpoints=("a",)),
        )
        await harness.serve(
            config(
                [
                    cluster(
                        a.endpoint("a"),
                        b.endpoint("b"),
                        identity=UpstreamIdentity.IMPERSONATE,
                        credentials=model.Credentials(token=model.Secret("own")),
                    )
                ],
                [server(*policies, authentication="users", authorization="all")],
                authentication=(USERS,),
                authorization=(ALLOWS_ALL,),
            )
        )
        await ready(harness)
        await answered(harness, PODS, b"Authorization: Bearer alice")
        assert b.received == b""
        await answered(harness, PODS, b"Authorization: Bearer alice", b"Impersonate-User: bob")
        assert b"Impersonate-User: bob\r\n" in b.received
        assert a.received.count(b"GET") == 1


class TestWhatItGives:
    async def test_a_rejection_in_its_own_words(self, harness: Harness) -> None:
        a, _ = await two(harness)
        reject = model.Reject(code=405, message="not here, <ask> elsewhere")
        await harness.serve(config([cluster(a.endpoint())], [server(pods(reject=reject), rest())]))
        status, _, body = await refusal(harness, PODS)
        assert (status, body["message"], body["reason"]) == (405, "not here, <ask> elsewhere", "MethodNotAllowed")
        assert a.received == b""

    async def test_another_cluster(self, harness: Harness) -> None:
        a, b = await two(harness)
        moved = pods(backend=model.ClusterBackend("west"))
        await harness.serve(
            config(
                [cluster(a.endpoint()), cluster(b.endpoint(), name="west")],
                [server(moved, rest())],
                logging=model.Logging(access=model.AccessLogConfig()),
            )
        )
        await answered(harness, PODS)
        await answered(harness, NODES)
        assert (a.received.count(b"GET"), b.received.count(b"GET")) == (1, 1)
        assert PODS in b.received
        assert [(record.cluster, record.policy) for record in harness.records] == [("west", "pods"), ("east", "rest")]

    @pytest.mark.parametrize(
        ("servers", "policys", "logged"),
        [(True, None, True), (True, False, False), (True, True, True), (False, True, False), (False, None, False)],
    )
    async def test_silence_in_the_access_log(
        self, harness: Harness, servers: bool, policys: bool | None, logged: bool
    ) -> None:
        a, _ = await two(harness)
        await harness.serve(
            config(
                [cluster(a.endpoint())],
                [server(pods(access_log=policys), access_log=servers)],
                logging=model.Logging(access=model.AccessLogConfig()),
            )
        )
        await answered(harness, PODS)
        assert [record.policy for record in harness.records] == (["pods"] if logged else [])

    @pytest.mark.parametrize("strategy", list(Strategy))
    async def test_a_subset_of_the_endpoints_by_any_strategy(self, harness: Harness, strategy: Strategy) -> None:
        a, b = await two(harness)
        await harness.serve(
            config([cluster(a.endpoint("a"), b.endpoint("b"))], [server(rest(endpoints=("b",), strategy=strategy))])
        )
        await ready(harness)
        for _ in range(3):
            await answered(harness, PODS)
        assert (a.received.count(b"GET"), b.received.count(b"GET")) == (0, 3)

    async def test_each_policy_has_a_round_of_its_own(self, harness: Harness) -> None:
        a, b = await two(harness)
        await harness.serve(config([cluster(a.endpoint("a"), b.endpoint("b"))], [server(pods(), rest())]))
        await ready(harness)
        for target in (PODS + b"/1", NODES + b"/1", PODS + b"/2", NODES + b"/2"):
            await answered(harness, target)
        assert PODS + b"/1" in a.received
        assert NODES + b"/1" in a.received
        assert PODS + b"/2" in b.received
        assert NODES + b"/2" in b.received


class TestServerOfSeveralClusters:
    async def test_rules_may_match_clusters_and_the_path_below(self, harness: Harness) -> None:
        a, b = await two(harness)
        policies = (
            policy(
                "west-pods", rule(resources=("pods",), non_resource_urls=(), clusters=("west",)), reject=model.Reject()
            ),
            policy("all", rule(resources=("pods", "nodes"), non_resource_urls=("/version",))),
        )
        await harness.serve(
            config(
                [cluster(a.endpoint()), cluster(b.endpoint(), name="west")],
                [server(*policies, backend=model.ClustersBackend(("east", "west")))],
            )
        )
        assert (await answered(harness, b"/clusters/east" + PODS)).answer()[0] == 200
        assert (await answered(harness, b"/clusters/west" + PODS)).answer()[0] == 403
        assert (await answered(harness, b"/clusters/west" + NODES)).answer()[0] == 200
        assert (await answered(harness, b"/clusters/west/version")).answer()[0] == 200
        assert (await answered(harness, b"/clusters/west/livez")).answer()[0] == 403
        assert b"GET /api/v1/namespaces/demo/pods" in a.received
        assert PODS not in b.received


class TestLimits:
    async def test_the_refusal_exactly(self, harness: Harness) -> None:
        a, _ = await two(harness)
        bulk = FlowControl(name="bulk", type=BUCKET, qps=0.001, burst=1)
        await harness.serve(config([cluster(a.endpoint())], [server(rest(flow_control="bulk"))], flow_controls=(bulk,)))
        assert (await answered(harness, PODS)).answer()[0] == 200
        client = await answered(harness, PODS)
        status, fields, body = client.answer()
        assert status == 429
        assert fields["retry-after"] == "1"
        assert fields["content-type"] == "application/json"
        assert body == (
            b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too many requests for '
            b'cluster \\"east\\", limited by flow control \\"bulk\\" (TokenBucket, qps 0.001, burst 1)",'
            b'"reason":"TooManyRequests","details":{"retryAfterSeconds":1},"code":429}\n'
        )
        assert int(fields["content-length"]) == len(body)

    @pytest.mark.parametrize(
        ("target", "told"),
        [
            (EVENTS, False),
            (b"/apis/events.k8s.io/v1/namespaces/demo/events", False),
            (b"/apis/example.com/v1/namespaces/demo/events", True),
            (PODS, True),
        ],
    )
    async def test_recorders_of_events_are_not_asked_to_come_back(
        self, harness: Harness, target: bytes, told: bool
    ) -> None:
        a, _ = await two(harness)
        await harness.serve(
            config([cluster(a.endpoint())], [server(rest(flow_control="none"))], flow_controls=(NOTHING,))
        )
        _, fields, body = await refusal(harness, target, method=b"POST")
        assert ("retry-after" in fields, "retryAfterSeconds" in body.get("details", {})) == (told, told)

    async def test_a_maximum_lets_the_next_through_when_one_has_ended_and_watches_count_apart(
        self, harness: Harness
    ) -> None:
        a = harness.upstream()
        few = FlowControl(name="few", type=INFLIGHT, max=1, max_long_running=1, queue=Queue(size=1, timeout=60.0))
        await harness.serve(
            config([cluster(a.endpoint(), flow_controls=("few",))], [server(rest())], flow_controls=(few,))
        )
        a.reply = lambda end: end.send(EVENTS_STREAM)
        watch = await harness.asks(get(PODS + b"?watch=1"))
        await harness.until(lambda: watch.received.endswith(b"{}\n\r\n"), "the watch")
        a.reply = None
        first = await harness.asks(get(PODS + b"/first"))
        await harness.until(lambda: PODS + b"/first" in a.received, "the first")
        second = await harness.asks(get(PODS + b"/second"))
        await harness.turns()
        assert PODS + b"/second" not in a.received
        status, _, body = await refusal(harness, PODS + b"/third")  # the queue is full
        assert (status, body["message"].endswith("(MaxRequestsInflight, max 1, max long-running 1)")) == (429, True)
        a.last.send(OK)
        await harness.until(lambda: PODS + b"/second" in a.received, "the second")
        a.last.send(OK)
        await harness.until(lambda: first.received and second.received, "both answers")
        assert [each.answer()[0] for each in (first, second)] == [200, 200]

    async def test_each_user_has_a_limit_of_the_users_own(self, harness: Harness) -> None:
        a, _ = await two(harness)
        each = FlowControl(name="each", type=BUCKET, qps=0.001, burst=1, per=model.Per.USER)
        await harness.serve(
            config(
                [
                    cluster(
                        a.endpoint(),
                        identity=UpstreamIdentity.IMPERSONATE,
                        credentials=model.Credentials(token=model.Secret("own")),
                    )
                ],
                [server(rest(flow_control="each"), authentication="users", authorization="all")],
                authentication=(USERS,),
                authorization=(ALLOWS_ALL,),
                flow_controls=(each,),
            )
        )

        async def status(*who: bytes) -> int:
            return (await answered(harness, PODS, *who)).answer()[0]

        assert await status(b"Authorization: Bearer alice") == 200
        assert await status(b"Authorization: Bearer alice") == 429
        assert await status(b"Authorization: Bearer bob") == 200
        # who acts as somebody else takes of that one's limit
        assert await status(b"Authorization: Bearer carol", b"Impersonate-User: alice") == 429
        assert await status(b"Authorization: Bearer carol") == 200
