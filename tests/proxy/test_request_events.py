"""Slow endpoints are told once a minute, with who waited for what; long-running requests are not slow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy.request import Request
from mcproxy.proxy.request_records import SLOW, RequestEvents
from tests.proxy.builders import NOT_ASKED, FakeExchange, virtual_server
from tests.support.logged import captured_logs

SERVER = virtual_server(
    model.Server(name="main", listeners=("l",), backend=model.ClusterBackend("east"), authentication="users"),
    {"east": NOT_ASKED},
)


def request(
    *, first_byte_at: float = 0.0, sent_at: float = 100.0, ended_at: float = 200.0, endpoint: str = "a",
    session: bool = False, target: bytes = b"/api/v1/pods", **exchange: Any,
) -> Any:  # fmt: skip
    made = FakeExchange(target)
    usual = {"completed": True, "responded": True, "status": 200, "bytes_out": 4, "first_byte_at": first_byte_at}
    for name, value in {**usual, **exchange}.items():
        setattr(made, name, value)
    client: Any = SimpleNamespace(log_address="10.0.0.9", foreign_host=False)
    ended: Any = Request(made, client, set(), Recorders())
    ended.sent_at, ended.ended_at = sent_at, ended_at
    ended.server, ended.cluster = SERVER, SimpleNamespace(name="east")
    ended.endpoint = SimpleNamespace(name=endpoint)
    ended.caller = AuthenticatedUser(UserInfo("alice"))
    if session:
        ended.info = parse(b"GET", target + b"?watch=1")
    return ended


def told(events: RequestEvents, *requests: Any) -> list[dict[str, Any]]:
    with captured_logs() as logged:
        for each in requests:
            events.ended(each)
    return list(logged)


def test_a_slow_endpoint_is_told_once_a_minute_with_uri_and_user() -> None:
    events = RequestEvents()
    slow = request(first_byte_at=100.0 + SLOW)
    (line,) = told(events, slow, slow, request(first_byte_at=100.0 + SLOW - 0.1))
    assert (line["event"], line["uri"], line["user"], line["seconds"]) == (
        "upstream_slow",
        "/api/v1/pods",
        "alice",
        SLOW,
    )
    assert len(told(events, request(first_byte_at=120.0, endpoint="b"))) == 1
    assert len(told(events, request(first_byte_at=120.0, ended_at=260.0))) == 1


def test_an_endpoint_is_not_slow_while_the_client_sends() -> None:
    events = RequestEvents()
    assert not told(events, request(first_byte_at=160.0, body_ended_at=160.0 - SLOW + 0.1))
    assert not told(events, request(first_byte_at=160.0, body_ended_at=180.0))  # it answered before the end
    (line,) = told(events, request(first_byte_at=160.0, body_ended_at=160.0 - SLOW))
    assert (line["event"], line["seconds"]) == ("upstream_slow", SLOW)


def test_a_401_to_the_proxys_own_identity_is_told_once_a_minute() -> None:
    refused = request(status=401)
    refused.upstream_status = 401
    refused.info = parse(b"GET", b"/api/v1/namespaces/a/services/b")
    endpoint = model.EndpointConfig(name="a", scheme="https", host="10.0.0.1", port=6443)
    config = model.ClusterConfig(name="east", endpoints=(endpoint,), identity=model.UpstreamIdentity.PROXY)
    refused.cluster = SimpleNamespace(name="east", config=config)
    events = RequestEvents()
    (line,) = told(events, refused, refused)
    assert (line["event"], line["cluster"]) == ("upstream_credential_refused", "east")
    assert "`credentials`" in line["todo"]
    refused.info = parse(b"GET", b"/api/v1/namespaces/a/services/b/proxy")
    assert told(RequestEvents(), refused) == [], "it may be a tenant's server that answers 401"
    refused.info = parse(b"GET", b"/api/v1/namespaces/a/services/b")
    refused.cluster.config = replace(config, identity=model.UpstreamIdentity.PASSTHROUGH)  # the client's own credential
    assert told(RequestEvents(), refused) == []


def test_an_endpoint_that_closes_every_connection_is_told_once_a_minute() -> None:
    """Its health checks may succeed, so nothing else would say why clients get 503."""
    unanswered = request()
    unanswered.reason = "upstream_unreachable"
    assert told(RequestEvents(), unanswered) == []  # no endpoint was ready: `endpoint_out` has said why
    unanswered.attempts = 2
    unanswered.refusal = StatusError(503, "a: the connection failed")
    (line,) = told(RequestEvents(), *[unanswered] * 2)
    assert (line["event"], line["endpoint"], line["attempts"]) == ("upstream_no_answer", "a", 2)
    assert line["cause"] == "a: the connection failed"


@pytest.mark.parametrize(("foreign", "todo"), [(False, "cors.allowedOrigins"), (True, "serverNames")])
def test_what_to_do_about_a_page_and_about_a_host_that_is_not_known_differ(foreign: bool, todo: str) -> None:
    refused = request()
    refused.reason = "cross_site"
    refused.client.foreign_host = foreign
    (line,) = told(RequestEvents(), refused)
    assert line["event"] == "request_forbidden"
    assert todo in line["todo"]


@pytest.mark.parametrize(
    "quiet", [request(first_byte_at=900.0, session=True), request(first_byte_at=900.0, sent_at=0.0)]
)
def test_what_is_long_running_or_was_not_sent_is_not_slow(quiet: Any) -> None:
    assert told(RequestEvents(), quiet) == []


@pytest.mark.parametrize(
    ("how", "event"),
    [
        ({"completed": False}, "client_broke_off"),
        ({"completed": False, "stalled": True}, "client_stalled"),
        ({"completed": False, "responded": False}, None),  # it waits no longer for a response
        (
            {"completed": False, "responded": False, "bytes_in": 7, "body_complete": False, "status": 0},
            "client_broke_off",
        ),
        ({"completed": False, "responded": False, "bytes_in": 7, "body_complete": False, "status": 413}, None),
        ({"completed": False, "session": True}, None),  # a watch
        ({}, None),
    ],
)
def test_a_client_that_goes_in_the_middle_is_told(how: dict[str, Any], event: str | None) -> None:
    assert [line["event"] for line in told(RequestEvents(), request(**how))] == ([] if event is None else [event])


def test_a_uri_is_bounded_and_has_no_secret() -> None:
    fields = request(target=b"/x?token=s3cret&" + b"a" * 5000).log_fields()
    assert "s3cret" not in fields["uri"]
    assert len(fields["uri"]) < 600
