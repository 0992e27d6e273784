"""Which requests to ingresses are a log line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mcproxy.services.ingress.request_events import SLOW, IngressEvents
from tests.support.logged import captured_logs


def request(
    *, first_byte_at: float, body_ended_at: float = 0.0, upgraded: bool = False, target: bytes = b"/upload"
) -> Any:
    head = SimpleNamespace(target=target, method=b"PUT")
    exchange = SimpleNamespace(
        head=head, first_byte_at=first_byte_at, body_ended_at=body_ended_at, upgraded=upgraded, status=200, bytes_out=0
    )
    return cast(
        "Any",
        SimpleNamespace(
            reason="",
            sent_at=100.0,
            ended_at=200.0,
            exchange=exchange,
            route=SimpleNamespace(ingress="web", label="a.example/"),
            service="demo/x",
            endpoint=SimpleNamespace(cluster="east", name="10.0.0.1:80"),
            noted=None,
            client=SimpleNamespace(log_address="10.9.0.1"),
            message="",
        ),
    )


def told(one: Any) -> list[dict[str, Any]]:
    with captured_logs() as logged:
        IngressEvents().ended(one)
    return list(logged)


def test_a_pod_is_slow_from_the_end_of_the_request_and_not_while_the_client_sends() -> None:
    (line,) = told(request(first_byte_at=100.0 + SLOW))
    assert (line["event"], line["seconds"], line["endpoint"]) == ("upstream_slow", SLOW, "10.0.0.1:80")
    assert not told(request(first_byte_at=160.0, body_ended_at=160.0 - SLOW + 0.1))
    assert not told(request(first_byte_at=160.0, body_ended_at=180.0))  # it answered before the end
    (line,) = told(request(first_byte_at=160.0, body_ended_at=160.0 - SLOW))
    assert line["seconds"] == SLOW
    assert not told(request(first_byte_at=160.0, upgraded=True))


def test_a_uri_is_bounded_and_has_no_secret() -> None:
    (line,) = told(request(first_byte_at=160.0, target=b"/a?token=hush&q=" + b"x" * 600))
    assert line["uri"] == "/a?token=***&q=" + "x" * (512 - len("/a?token=hush&q=")) + "..."
    (line,) = told(request(first_byte_at=160.0, target=b"/" + b"x" * 511))
    assert line["uri"] == "/" + "x" * 511
