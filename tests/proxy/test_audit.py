"""What the audit log has of requests, by their events as a kube-apiserver writes them (k8s.io/apiserver pkg/audit)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mcproxy.aggregate.request import AggregatedRequest
from mcproxy.aggregate.writes.member_requests import client_fields
from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import Harness, Upstream, always, cluster, config, get, listener, reviewing

NOBODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
POD = b"/api/v1/namespaces/a/pods/b"
WATCH = b"/api/v1/namespaces/a/pods?watch=true"
ALICE, BOSS = b"Authorization: Bearer alice", b"Authorization: Bearer boss"
TOKENS = model.TokenFileConfig(
    "users.csv",
    (
        model.StaticToken(model.Secret("alice"), "alice", "7", ("dev",)),
        model.StaticToken(model.Secret("boss"), "boss", "1", ("ops",)),
    ),
)
USERS = model.Authentication(name="users", token_file=TOKENS)
RULES = model.Authorization(
    name="local", rules=(rule(users=("alice", "boss", "carol")), rule(users=("boss",), verbs=("impersonate",)))
)
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
RECEIVED, STARTED, COMPLETE = "RequestReceived", "ResponseStarted", "ResponseComplete"


class Stage:
    """A proxy with an audit log, and what that has."""

    def __init__(self, harness: Harness, path: Path) -> None:
        self.harness = harness
        self.path = path
        self.cluster_fields: dict[str, Any] = {}
        self.upstream: Upstream = harness.upstream()
        self.upstream.reply = reviewing(always(NOBODY), lambda _: True)

    def logging(self, path: Path | None = None) -> model.Logging:
        return model.Logging(audit=model.AuditLogConfig(file=str(path or self.path)))

    def config(
        self, *policies: model.Policy, listeners: tuple[model.ListenerConfig, ...] = (), **more: Any
    ) -> model.Config:
        fields: dict[str, Any] = {"authorization": "local", "dispatch": policies or (policy("rest", rule()),)}
        server = model.Server(
            name="main",
            listeners=("tls",),
            default=True,
            authentication="users",
            **{"backend": model.ClusterBackend("east"), **fields, **more.pop("server", {})},
        )
        return config(
            [cluster(self.upstream.endpoint(), **self.cluster_fields)],
            [server],
            listeners,
            authentication=(USERS,),
            authorization=(RULES,),
            logging=self.logging(),
            **more,
        )

    async def serve(self, *policies: model.Policy, **more: Any) -> None:
        await self.harness.serve(self.config(*policies, **more))
        runtime = self.harness.service.runtime
        assert runtime is not None
        await self.harness.until(lambda: runtime.clusters["east"].endpoints[0].ready, "readiness")

    async def events(self, count: int, path: Path | None = None) -> list[dict[str, Any]]:
        file = path or self.path
        await self.harness.until(lambda: len(file.read_bytes().splitlines()) >= count, f"{count} events")
        await self.harness.turns()
        return [json.loads(line) for line in file.read_text("ascii").splitlines()]


@pytest.fixture
def stage(harness: Harness, tmp_path: Path) -> Stage:
    return Stage(harness, tmp_path / "audit.log")


def stages(events: list[dict[str, Any]]) -> list[str]:
    return [event["stage"] for event in events]


async def test_a_request_has_the_events_of_a_kube_apiserver(stage: Stage) -> None:
    await stage.serve()
    client = await stage.harness.asks(get(POD + b"?a=b", ALICE, b"User-Agent: kubectl/v1", b"Audit-ID: mine"))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    first, last = await stage.events(2)
    for event in (first, last):
        assert MICRO_TIME.fullmatch(event.pop("requestReceivedTimestamp"))
        assert MICRO_TIME.fullmatch(event.pop("stageTimestamp"))
    common = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": "mine",
        "requestURI": "/api/v1/namespaces/a/pods/b?a=b",
        "verb": "get",
        "user": {"username": "alice", "uid": "7", "groups": ["dev", "system:authenticated"]},
        "sourceIPs": ["127.0.0.1"],
        "userAgent": "kubectl/v1",
        "objectRef": {"resource": "pods", "namespace": "a", "name": "b", "apiVersion": "v1"},
    }
    assert first == {**common, "stage": RECEIVED}
    assert last == {
        **common,
        "stage": COMPLETE,
        "responseStatus": {"metadata": {}, "code": 200},
        "annotations": {
            "authorization.k8s.io/decision": "allow",
            "authorization.k8s.io/reason": last["annotations"]["authorization.k8s.io/reason"],
            "mcproxy.io/cluster": "east",
            "mcproxy.io/endpoint": "a",
            "mcproxy.io/policy": "rest",
            "mcproxy.io/reason": "ok",
            "mcproxy.io/server": "main",
        },
    }
    order = list(json.loads(stage.path.read_text().splitlines()[1]))
    assert order == [
        "kind", "apiVersion", "level", "auditID", "stage", "requestURI", "verb", "user", "sourceIPs", "userAgent",
        "objectRef", "responseStatus", "requestReceivedTimestamp", "stageTimestamp", "annotations",
    ]  # fmt: skip


async def test_a_watch_has_an_event_when_its_response_begins(stage: Stage) -> None:
    await stage.serve()
    stage.upstream.reply = reviewing(
        always(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"),
        lambda _: True,
    )
    client = await stage.harness.asks(get(WATCH, ALICE))
    first, second = await stage.events(2)
    assert (first["stage"], second["stage"]) == (RECEIVED, STARTED)
    assert second["responseStatus"] == {"metadata": {}, "code": 200}
    assert second["verb"] == "watch"
    assert "name" not in second["objectRef"]
    client.abort()
    last = (await stage.events(3))[-1]
    assert (last["stage"], last["annotations"]["mcproxy.io/reason"]) == (COMPLETE, "client_closed")
    assert first["requestReceivedTimestamp"] == last["requestReceivedTimestamp"] <= last["stageTimestamp"]


async def test_nobody_has_one_event(stage: Stage) -> None:
    await stage.serve()
    client = await stage.harness.asks(get(POD, b"Authorization: Bearer wrong"))
    await stage.harness.until(lambda: b"Unauthorized" in client.received)
    (event,) = await stage.events(1)
    assert (event["stage"], event["user"], event["verb"]) == (STARTED, {}, "get")
    assert event["responseStatus"] == {
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }
    assert event["objectRef"]["name"] == "b"
    assert b"Audit-Id: " + event["auditID"].encode() in client.received


async def test_who_may_not_impersonate_is_forbidden(stage: Stage) -> None:
    await stage.serve()
    client = await stage.harness.asks(get(POD, ALICE, b"Impersonate-User: root"))
    await stage.harness.until(lambda: b" 403 " in client.received)
    first, last = await stage.events(2)
    assert (first["stage"], last["stage"], last["responseStatus"]["code"]) == (RECEIVED, COMPLETE, 403)
    assert last["responseStatus"]["reason"] == "Forbidden"
    assert "impersonatedUser" not in last
    assert last["annotations"]["mcproxy.io/reason"] == "impersonation_refused"


async def test_what_is_remembered_for_one_request_is_not_that_of_another(stage: Stage) -> None:
    await stage.serve(policy("nodes", rule(resources=("nodes",))), policy("rest", rule()))
    node, count = b"/api/v1/nodes/n", 0
    seen: list[dict[str, str]] = []
    for target, fields in ((POD, ()), (node, ()), (POD, (b"Impersonate-User: root",)), (node, ()), (POD, ())):
        stage.upstream.forget()
        stage.upstream.reply = reviewing(always(NOBODY), lambda _: True)
        await stage.harness.asks(get(target, ALICE, *fields))
        count += 2
        seen.append((await stage.events(count))[-1]["annotations"])
    pod, of_node, refused, *again = seen
    assert again == [of_node, pod]
    assert [each.get("mcproxy.io/policy") for each in (pod, of_node, refused)] == ["rest", "nodes", None]
    assert [each["mcproxy.io/reason"] for each in (pod, of_node, refused)] == ["ok", "ok", "impersonation_refused"]


async def test_an_impersonated_user_is_beside_the_real_one(stage: Stage) -> None:
    lent = model.Credentials(token=model.Secret("lent"))
    stage.cluster_fields = {"identity": model.UpstreamIdentity.IMPERSONATE, "credentials": lent}
    await stage.serve()
    client = await stage.harness.asks(get(POD, BOSS, b"Impersonate-User: carol"))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    first, last = await stage.events(2)
    assert "impersonatedUser" not in first
    assert last["user"]["username"] == "boss"
    assert last["impersonatedUser"] == {"username": "carol", "groups": ["system:authenticated"]}


async def test_a_limit_is_429_with_its_status(stage: Stage) -> None:
    none = FlowControl(name="none", type=FlowControlType.MAX_REQUESTS_INFLIGHT, max=0)
    await stage.serve(policy("limited", rule(), flow_control="none"), flow_controls=(none,))
    client = await stage.harness.asks(get(POD, ALICE))
    await stage.harness.until(lambda: b" 429 " in client.received)
    last = (await stage.events(2))[-1]
    assert last["responseStatus"]["code"] == 429
    assert last["responseStatus"]["details"]["retryAfterSeconds"] >= 1
    assert last["annotations"]["mcproxy.io/policy"] == "limited"


async def test_a_body_that_breaks_the_protocol_is_its_400(stage: Stage) -> None:
    await stage.serve()
    stage.upstream.reply = reviewing(lambda end: None, lambda _: True)
    head = get(b"/api/v1/namespaces/a/pods", ALICE, b"Transfer-Encoding: chunked", method=b"POST")
    client = await stage.harness.asks(head + b"nonsense\r\n")
    await stage.harness.until(lambda: b" 400 " in client.received)
    last = (await stage.events(2))[-1]
    assert (last["verb"], last["responseStatus"]["code"]) == ("create", 400)
    assert last["annotations"]["mcproxy.io/reason"] == "bad_request"


async def test_a_path_that_is_ambiguous_is_audited_without_an_object(stage: Stage) -> None:
    await stage.serve()
    client = await stage.harness.asks(get(b"/api/v1/../secrets", ALICE))
    await stage.harness.until(lambda: b" 400 " in client.received)
    first, last = await stage.events(2)
    assert (first["stage"], last["stage"], last["responseStatus"]["code"]) == (RECEIVED, COMPLETE, 400)
    assert (last["verb"], "objectRef" in last, last["user"]["username"]) == ("get", False, "alice")


async def test_a_bug_is_a_panic(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.serve()
    runtime = stage.harness.service.runtime
    assert runtime is not None
    monkeypatch.setattr(runtime.servers["main"], "own_objects", (object(),))
    client = await stage.harness.asks(get(POD, ALICE))
    await stage.harness.until(lambda: b" 500 " in client.received)
    first, last = await stage.events(2)
    assert (first["stage"], last["stage"], last["responseStatus"]["code"]) == (RECEIVED, "Panic", 500)


async def test_credentials_in_the_query_are_masked(stage: Stage) -> None:
    await stage.serve()
    target = POD + b"/proxy/?token=SECRET&access_token=SECRET&x=1"
    client = await stage.harness.asks(get(target, ALICE))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    events = await stage.events(3)
    assert stages(events) == [RECEIVED, STARTED, COMPLETE]
    assert {event["requestURI"] for event in events} == {(POD + b"/proxy/?token=***&access_token=***&x=1").decode()}
    assert "SECRET" not in stage.path.read_text()


async def test_addresses_before_the_last_are_those_of_trusted_proxies(stage: Stage) -> None:
    import ipaddress

    chain = b"X-Forwarded-For: 6.6.6.6, nonsense, 2001:db8::0:1"
    trusting = listener(trusted_proxies=(ipaddress.ip_network("127.0.0.0/8"),))
    await stage.serve(listeners=(trusting,))
    client = await stage.harness.asks(get(POD, ALICE, chain))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    assert (await stage.events(2))[-1]["sourceIPs"] == ["6.6.6.6", "2001:db8::1", "127.0.0.1"]


async def test_addresses_of_others_are_not_believed(stage: Stage) -> None:
    await stage.serve()
    client = await stage.harness.asks(get(POD, ALICE, b"X-Forwarded-For: 6.6.6.6", b"X-Real-Ip: 6.6.6.6"))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    assert (await stage.events(2))[-1]["sourceIPs"] == ["127.0.0.1"]


async def test_the_file_may_change_in_a_reload_and_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    from dataclasses import replace

    await stage.serve()
    stage.upstream.reply = reviewing(lambda end: None, lambda _: True)
    client = await stage.harness.asks(get(POD, ALICE))
    await stage.events(1)
    other = tmp_path / "other.log"
    now = stage.harness.service.runtime
    assert now is not None
    await stage.harness.service.apply(replace(now.config, logging=stage.logging(other)))
    stage.upstream.last.send(NOBODY)
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    (late,) = await stage.events(1, other)
    (early,) = await stage.events(1)
    assert (early["stage"], late["stage"], early["auditID"]) == (RECEIVED, COMPLETE, late["auditID"])


@pytest.mark.parametrize("sent", [b"Audit-ID: mine", b"Audit-ID: " + b"x" * 65, b"Audit-ID: a b", b"A: b"])
async def test_the_cluster_and_the_client_get_the_audit_id_of_the_log(stage: Stage, sent: bytes) -> None:
    await stage.serve()
    client = await stage.harness.asks(get(POD, ALICE, sent))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    identifier = (await stage.events(2))[-1]["auditID"].encode()
    assert (identifier == b"mine") is sent.endswith(b"mine")
    upstream = [line for line in stage.upstream.received.split(b"\r\n") if line.lower().startswith(b"audit-id")]
    assert [line.partition(b": ")[2] for line in upstream] == [identifier]
    assert client.received.count(b"\r\nAudit-Id: " + identifier + b"\r\n") == 1


async def test_trace_context_is_passed_on_unless_it_is_garbage(stage: Stage) -> None:
    await stage.serve()
    good = (b"traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"tracestate: x=1,y=2")
    bad = (b"traceparent: 00-" + b"g" * 32 + b"-" + b"b" * 16 + b"-01", b"tracestate: x=1")
    for fields in (good, bad):
        stage.upstream.forget()
        stage.upstream.reply = reviewing(always(NOBODY), lambda _: True)
        client = await stage.harness.asks(get(POD, ALICE, *fields))
        await stage.harness.until(lambda client=client: client.received.endswith(b"{}"))  # type: ignore[misc]
        assert [field in stage.upstream.received for field in fields] == [fields is good] * 2


class OfMembers:
    """The owner of an aggregate that asks its member twice for an answer."""

    handlers: Any

    def __init__(self) -> None:
        self.handlers = {"fleet": self}

    def prepare(self, *_: object) -> OfMembers:
        return self

    def stale_reviewers(self, server: str, aggregate: str, reviewers: Any) -> Any:
        return reviewers

    def documents(self, *_: object) -> OfMembers:
        return self

    def activate(self) -> None:
        """Nothing is to be done."""

    async def handle(self, request: AggregatedRequest) -> None:
        for _ in range(2):
            await request.send("east", b"GET", b"/api/v1/nodes", fields=client_fields(request))
        request.served_by("east", cached=False)
        request.exchange.answer(200, request.own_fields(), b"{}")


async def test_a_request_to_an_aggregate_is_audited_once_whatever_it_asks_of_members(stage: Stage) -> None:
    stage.harness.use_aggregates(OfMembers())
    backend = model.AggregateBackendConfig("fleet", ("east",), "east")
    await stage.serve(server={"backend": backend, "authorization": None})
    client = await stage.harness.asks(get(POD, ALICE))
    await stage.harness.until(lambda: client.received.endswith(b"{}"))
    events = await stage.events(2)
    assert stages(events) == [RECEIVED, COMPLETE]
    assert events[1]["annotations"]["mcproxy.io/cluster"] == "east"
    identifier = events[0]["auditID"].encode()
    sent = re.findall(rb"(?i)\r\naudit-id: ([^\r]*)", stage.upstream.received)
    assert sent == [identifier] * 2
    assert b"Audit-Id: " + identifier in client.received
