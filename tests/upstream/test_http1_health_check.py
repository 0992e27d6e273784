"""One health check over HTTP/1.1, on the wire."""

from __future__ import annotations

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mcproxy.upstream.health_check import CheckError, HTTP1Check, failure_message, http1_request, is_refused

READYZ = b"[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/x failed: reason withheld\n"


def connected() -> tuple[HTTP1Check, StringTransport]:
    check, transport = HTTP1Check(b"REQUEST"), StringTransport()  # type: ignore[no-untyped-call]
    check.makeConnection(transport)  # type: ignore[no-untyped-call]
    return check, transport


def sent(transport: StringTransport) -> bytes:
    return bytes(transport.value())  # type: ignore[no-untyped-call]


def end(check: HTTP1Check, reason: Exception) -> None:
    check.connectionLost(Failure(reason))  # type: ignore[no-untyped-call]


def result(check: HTTP1Check) -> tuple[int, bytes]:
    got: list[tuple[int, bytes]] = []
    check.answer.addCallback(got.append)
    assert got, "no answer yet"
    return got[0]


def error(check: HTTP1Check) -> str:
    got: list[str] = []

    def failed(failure: Failure) -> None:
        assert isinstance(failure.value, CheckError)
        got.append(str(failure.value))

    check.answer.addErrback(failed)
    assert got, "no failure yet"
    return got[0]


def test_the_request_asks_for_one_answer_only() -> None:
    assert http1_request(b"h:6443", b"/p/readyz", b"Bearer t").split(b"\r\n") == [
        b"GET /p/readyz HTTP/1.1",
        b"Host: h:6443",
        b"User-Agent: mcproxy-health/" + __import__("mcproxy").__version__.encode(),
        b"Accept: */*",
        b"Connection: close",
        b"Authorization: Bearer t",
        b"",
        b"",
    ]


def test_without_a_credential_nothing_is_said_of_one() -> None:
    assert b"Authorization" not in http1_request(b"h", b"/readyz", None)


@pytest.mark.parametrize("cut", range(1, 60))
def test_an_answer_is_read_however_it_is_cut(cut: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nbad"
    check, transport = connected()
    assert sent(transport) == b"REQUEST"
    check.dataReceived(data[:cut])
    check.dataReceived(data[cut:])
    assert result(check) == (500, b"bad")
    assert transport.disconnecting


def test_a_good_answer_does_not_wait_for_its_body() -> None:
    check, transport = connected()
    check.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    assert result(check)[0] == 200
    assert transport.disconnecting


def test_a_body_without_length_ends_with_the_connection() -> None:
    check, _ = connected()
    check.dataReceived(b"HTTP/1.1 500 X\r\n\r\nbad")
    end(check, ConnectionDone())
    assert result(check) == (500, b"bad")


def test_an_endless_body_is_cut() -> None:
    check, transport = connected()
    check.dataReceived(b"HTTP/1.1 500 X\r\n\r\n" + b"x" * 70_000)
    assert result(check)[0] == 500
    assert transport.disconnecting


@pytest.mark.parametrize(
    ("data", "reason", "complaint"),
    [
        (b"", ConnectionDone(), "closed the connection without an answer"),
        (b"HTTP/1.1 20", ConnectionLost(), "connection reset"),
        (b"SSH-2.0-OpenSSH\r\n", None, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, None, "endless head"),
    ],
)
def test_what_is_no_answer_is_an_error(data: bytes, reason: Exception | None, complaint: str) -> None:
    check, transport = connected()
    check.dataReceived(data)
    if reason is not None:
        end(check, reason)
    assert complaint in error(check)
    assert transport.disconnecting


def test_giving_up_closes_and_ignores_the_rest() -> None:
    check, transport = connected()
    check.close()
    assert transport.disconnecting
    check.dataReceived(b"HTTP/1.1 200 OK\r\n\r\n")
    end(check, ConnectionDone())
    assert not check.answer.called


@pytest.mark.parametrize("status", [200, 204])
def test_alive(status: int) -> None:
    assert failure_message(status, b"", "/readyz") is None
    assert not is_refused(status)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_credential_is_neither(status: int) -> None:
    assert failure_message(status, b"", "/readyz") == f"answered {status} on /readyz"
    assert is_refused(status)


@pytest.mark.parametrize("status", [301, 400, 404, 429, 500, 503])
def test_not_ready(status: int) -> None:
    assert failure_message(status, b"", "/readyz") == f"answered {status} on /readyz"


def test_the_failed_checks_of_an_api_server_are_named() -> None:
    assert failure_message(500, READYZ, "/readyz") == "answered 500 on /readyz: etcd, poststarthook/x failed"


def test_what_a_server_says_cannot_forge_log_lines() -> None:
    sentence = failure_message(500, b"[-]a\x1b[31m\r\xff" + b"x" * 1000, "/readyz")
    assert sentence is not None
    assert sentence.isprintable()
    assert len(sentence) < 300
