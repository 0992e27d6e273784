"""The reason of each kind of refusal in the access log, over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, UpstreamIdentity
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import NAME, OK, Client, Harness, Upstream, always, cluster, config, get
from tests.support.logged import captured_logs, told

ALICE = b"Authorization: Bearer alice"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
PODS, NODES, SECRETS = b"/api/v1/pods", b"/api/v1/nodes", b"/api/v1/secrets"


def only(*resources: str, **more: Any) -> model.Rule:
    return rule(resources=resources, non_resource_urls=(), **more)


async def answered(harness: Harness, client: Client) -> None:
    await harness.until(lambda: client.received, "the answer")


async def served(harness: Harness) -> Upstream:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    own: dict[str, Any] = {
        "identity": UpstreamIdentity.IMPERSONATE,
        "credentials": model.Credentials(token=model.Secret("own")),
    }
    dead = model.EndpointConfig(name="dead", scheme="http", host="127.0.0.1", port=1)
    usual: dict[str, Any] = {"listeners": ("tls",), "authentication": "users", "authorization": "most"}
    servers = (
        model.Server(
            name="main",
            server_names=(NAME,),
            backend=model.ClusterBackend("east"),
            dispatch=(
                policy("none", only("pods"), flow_control="none"),
                policy("never", only("nodes"), reject=model.Reject(code=410, message="gone")),
                policy("rest", only("secrets", "services", "configmaps")),
            ),
            **usual,
        ),
        model.Server(name="many", server_names=("other.test",), backend=model.ClustersBackend(("east",)), **usual),
        model.Server(name="dead", server_names=("a.wild.test",), backend=model.ClusterBackend("dead"), **usual),
    )
    token = model.StaticToken(model.Secret("alice"), "alice")
    await harness.serve(
        config(
            [cluster(upstream.endpoint(), **own), cluster(dead, name="dead", **own)],
            servers,
            authentication=(model.Authentication(name="users", token_file=model.TokenFileConfig("t", (token,))),),
            authorization=(model.Authorization(name="most", rules=(only("pods", "nodes", "services"),)),),
            flow_controls=(FlowControl(name="none", type=FlowControlType.MAX_REQUESTS_INFLIGHT, max=0),),
            logging=model.Logging(access=model.AccessLogConfig()),
        )
    )
    return upstream


@pytest.mark.parametrize(
    ("raw", "name", "status", "reason"),
    [
        (get(b"/api/v1/services", ALICE), NAME, 200, "ok"),
        (get(b"/api/v1//services", ALICE), NAME, 400, "bad_request"),
        (get(PODS), NAME, 401, "unauthenticated"),
        (get(SECRETS, ALICE), NAME, 403, "forbidden"),
        (get(b"/version", ALICE), NAME, 403, "no_policy"),
        (get(PODS, ALICE, b"Impersonate-User: bob"), NAME, 403, "impersonation_refused"),
        (get(NODES, ALICE), NAME, 410, "rejected"),
        (get(b"/clusters/west/api", ALICE).replace(b"k8s.test", b"other.test"), "other.test", 404, "no_cluster"),
        (get(b"/api", ALICE).replace(b"k8s.test", b"b.wild.test"), "b.wild.test", 404, "no_server"),
        (get(PODS, ALICE).replace(b"k8s.test", b"other.test"), NAME, 421, "misdirected"),
        (get(PODS, ALICE), NAME, 429, "flow_control"),
        (get(PODS, ALICE).replace(b"k8s.test", b"a.wild.test"), "a.wild.test", 503, "upstream_unreachable"),
    ],
)
async def test_a_refusal_is_logged_with_its_reason(
    harness: Harness, raw: bytes, name: str, status: int, reason: str
) -> None:
    await served(harness)
    client = await harness.asks(raw, server_name=name)
    await harness.until(lambda: harness.records and client.received, "the record and the answer")
    record = harness.records[-1]
    assert (record.status, record.reason) == (status, reason)
    assert client.answer()[0] == status
    assert (record.request_id == client.answer()[1].get("audit-id", "")) or status == 200


@pytest.mark.parametrize(
    ("raw", "event", "user", "todo"),
    [
        (get(PODS), "credential_missing", None, None),
        (get(PODS, b"Authorization: Bearer no"), "token_refused", None, "the client needs a token"),
        (get(SECRETS + b"?token=abc", ALICE), "request_forbidden", "alice", "allow it in the authorization"),
        (get(b"/version", ALICE), "request_forbidden", "alice", "add a dispatch policy"),
        (get(b"/api/v1//services", ALICE), "request_malformed", "alice", "see what that client sends"),
        (get(PODS, ALICE, b"Impersonate-User: bob"), "impersonation_refused", "alice", None),
        (get(PODS, ALICE), "flow_control_limit_reached", "alice", "raise the flow control"),
    ],
)
async def test_a_refusal_has_a_line_that_says_who_was_refused(
    harness: Harness, raw: bytes, event: str, user: str | None, todo: str | None
) -> None:
    await served(harness)
    with captured_logs() as events:
        for _ in range(2):
            client = await harness.asks(raw)
            await answered(harness, client)
        await harness.until(lambda: event in [line.get("event") for line in events], "the line")
    lines = [line for line in events if line.get("event") == event]
    line = lines[0]
    assert (line["server"], line["client"]) == ("main", "127.0.0.1")
    assert line.get("user") == user
    assert todo is None or todo in line["todo"]
    assert "abc" not in told(line)
    if user is not None:
        assert line["uri"].split("?")[0] in raw.decode()
        assert line["cause"]
    if event == "flow_control_limit_reached":
        assert len(lines) == 1
        assert line["log_subject"] == ("flow_control", "main", "east", "none")
        assert "flow control" in line["cause"]


async def test_a_response_that_the_endpoint_breaks_off_has_a_line_with_the_side(harness: Harness) -> None:
    upstream = await served(harness)
    upstream.reply = always(HALF)
    with captured_logs() as events:
        client = await harness.asks(get(b"/api/v1/services", ALICE))
        await harness.until(lambda: b"half" in client.received, "the half")
        upstream.last.transport.abortConnection()  # type: ignore[union-attr]
        await harness.until(lambda: [line for line in events if line.get("event") == "response_broken"], "the line")
    (line,) = [line for line in events if line.get("event") == "response_broken"]
    assert (line["cluster"], line["endpoint"], line["user"], line["uri"]) == ("east", "a", "alice", "/api/v1/services")


async def test_a_client_that_goes_in_the_middle_of_a_response_has_a_line(harness: Harness) -> None:
    upstream = await served(harness)
    upstream.reply = always(HALF)
    with captured_logs() as events:
        client = await harness.asks(get(b"/api/v1/services", ALICE))
        await harness.until(lambda: b"half" in client.received, "the half")
        client.transport.abortConnection()  # type: ignore[union-attr]
        await harness.until(lambda: [line for line in events if line.get("event") == "client_broke_off"], "the line")
    (line,) = [line for line in events if line.get("event") == "client_broke_off"]
    assert (line["user"], line["status"], line["bytesOut"]) == ("alice", 200, 4)
