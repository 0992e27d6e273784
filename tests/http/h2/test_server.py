"""The HTTP/2 server engine with a client on the `h2` package: requests and responses as a handler sees them."""

from __future__ import annotations

from tests.http.h2.harness import Client


def test_a_request_and_its_response() -> None:
    client = Client()
    number = client.asks(fields=[("user-agent", "kubectl"), ("authorization", "Bearer t")])
    head = client.last.exchange.head
    assert (head.method, head.target, head.host, head.length) == (b"GET", b"/api/v1/pods", b"api.example.com", 0)
    assert head.fields == b"user-agent: kubectl\r\nauthorization: Bearer t\r\n"
    assert client.last.exchange.protocol == "HTTP/2.0"
    client.last.answer(b"hello")
    client.exchange()
    assert client.status == {number: 200}
    assert client.fields[number] == {b":status": b"200", b"x": b"y", b"content-length": b"5"}
    assert client.bodies == {number: b"hello"}
    assert client.ended == {number}
    assert not client.resets
    assert client.last.ends == 1
    assert client.last.exchange.completed
    assert not client.server.connection.streams
