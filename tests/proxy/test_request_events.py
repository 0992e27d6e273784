"""Slow endpoints are told once a minute, with who waited for what; long-running requests are not slow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.logger import capturedLogs

from mcproxy.config import model
from mcproxy.proxy.log_fields import about
from mcproxy.proxy.request_events import SLOW, RequestEvents


def request(
    *, first_byte_at: float = 0.0, sent_at: float = 100.0, ended_at: float = 200.0, endpoint: str = "a",
    session: bool = False, target: bytes = b"/api/v1/pods", **exchange: Any,
) -> Any:  # fmt: skip
    head = SimpleNamespace(target=target, method=b"GET")
    return cast(
        Any,
        SimpleNamespace(
            reason="", upstream_status=0, sent_at=sent_at, ended_at=ended_at,
            is_session=session, refusal=None, info=None, plan=None,
            server=SimpleNamespace(name="main", authenticates=True), cluster=SimpleNamespace(name="east"),
            endpoint=SimpleNamespace(name=endpoint), attempts=0,
            client=SimpleNamespace(log_address="10.0.0.9", foreign_host=False),
            caller=SimpleNamespace(user=SimpleNamespace(name="alice")),
            exchange=SimpleNamespace(**{
                "head": head, "completed": True, "responded": True, "stalled": False, "status": 200, "bytes_in": 0,
                "bytes_out": 4, "body_complete": True, "first_byte_at": first_byte_at, **exchange,
            }),
        ),
    )  # fmt: skip


def told(events: RequestEvents, *requests: Any) -> list[dict[str, Any]]:
    with capturedLogs() as logged:
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


def test_a_401_to_the_proxys_own_identity_is_told_once_a_minute() -> None:
    refused = request(status=401)
    refused.upstream_status = 401
    endpoint = model.Endpoint(name="a", scheme="https", host="10.0.0.1", port=6443)
    config = model.Cluster(name="east", endpoints=(endpoint,), identity=model.Identity.PROXY)
    refused.cluster = SimpleNamespace(name="east", config=config)
    events = RequestEvents()
    (line,) = told(events, refused, refused)
    assert (line["event"], line["cluster"]) == ("upstream_credential_refused", "east")
    assert "`credentials`" in line["todo"]
    refused.cluster.config = replace(config, identity=model.Identity.PASSTHROUGH)  # the client's own credential
    assert told(RequestEvents(), refused) == []


def test_an_endpoint_that_closes_every_connection_is_told_once_a_minute() -> None:
    """Its health checks may succeed, so nothing else would say why clients get 503."""
    unanswered = request()
    unanswered.reason = "upstream_unreachable"
    assert told(RequestEvents(), unanswered) == []  # no endpoint was ready: `endpoint_out` has said why
    unanswered.attempts = 2
    unanswered.refusal = SimpleNamespace(message="a: the connection failed")
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
        ({"completed": False, "responded": False, "bytes_in": 7, "body_complete": False}, "client_broke_off"),
        ({"completed": False, "session": True}, None),  # a watch
        ({}, None),
    ],
)
def test_a_client_that_goes_in_the_middle_is_told(how: dict[str, Any], event: str | None) -> None:
    assert [line["event"] for line in told(RequestEvents(), request(**how))] == ([] if event is None else [event])


def test_a_uri_is_bounded_and_has_no_secret() -> None:
    fields = about(request(target=b"/x?token=s3cret&" + b"a" * 5000))
    assert "s3cret" not in fields["uri"]
    assert len(fields["uri"]) < 600
