"""What a hostile client sends: it must neither be misread nor cost more than it is worth."""

from __future__ import annotations

import pytest

from mcproxy.http.h1.head_parser import parse_request_head, parse_response_head
from mcproxy.http.messages import ProtocolError, UpstreamProtocolError
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.net.proxy_protocol import ProxyHeaderError
from mcproxy.net.proxy_protocol import parse as parse_proxy
from mcproxy.observe.log_values import mask_query
from mcproxy.proxy.routes import host_name
from tests.http.h1.harness import ServerHarness
from tests.support.processor_time import processor_time

HOST = b"Host: k8s.test\r\n"


@pytest.mark.parametrize("before", [b"\n", b"\r", b"\r\n\n", b"\r\n\r", b"\n\r\n", b"\r\n\r\n", b" "])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"TRACE"])
def test_what_stands_before_a_method_never_becomes_part_of_it(before: bytes, method: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request_head(before + method + b" / HTTP/1.1\r\n" + HOST + b"\r\n", 32768, 200)
    assert caught.value.status == 400


def test_a_length_of_thousands_of_digits_is_malformed_in_a_request() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request_head(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"0" * 5000 + b"5\r\n\r\n", 32768, 200)
    assert caught.value.status == 400


def test_a_length_of_thousands_of_digits_is_malformed_in_a_response() -> None:
    with pytest.raises(UpstreamProtocolError):
        parse_response_head(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"0" * 5000 + b"5\r\n\r\n", b"GET")


@pytest.mark.parametrize("name", [b"Impersonate-User", b"impersonate_group"])
def test_connection_cannot_take_away_an_impersonation_that_would_be_refused(name: bytes) -> None:
    raw = b"GET / HTTP/1.1\r\n" + HOST + name + b": a\r\nConnection: " + name + b"\r\n\r\n"
    with pytest.raises(ProtocolError) as caught:
        parse_request_head(raw, 32768, 200)
    assert caught.value.status == 400


@pytest.mark.parametrize("name", [b"X-Real-Ip", b"x_real_ip", b"Forwarded", b"X_Forwarded_For", b"X-Remote_User"])
def test_a_client_cannot_say_where_it_comes_from_or_who_it_is(name: bytes) -> None:
    presented = split_identity_headers(b"A: b\r\n" + name + b": 6.6.6.6\r\n")
    assert (presented.fields, presented.own) == (b"A: b\r\n", b"")


@pytest.mark.parametrize("path", [b"/..;/x", b"/a/..;b=c/x", b"/%2e%2e;/x", b"/.;/x", b"/x%5c..%5c..", b"/..%2fx"])
def test_dot_segments_in_disguise_are_refused(path: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        requestinfo.parse(b"GET", path)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    "path", [b"/api\\v1\\pods", b"/api%5Cv1%5Cpods", b"/\\api/v1/pods", b"/api/v1/pods\\x", b"/api/v1\\pods"]
)
def test_a_backslash_does_not_hide_a_resource(path: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        requestinfo.parse(b"GET", path)
    assert caught.value.code == 400


@pytest.mark.parametrize("query", [b"a&" * 15000, b"&" * 30000, b"%61&" * 7500, b"watc%68x=1&" * 2500])
def test_a_long_query_costs_little(query: bytes) -> None:
    with processor_time() as taken:
        requestinfo.parse(b"GET", b"/api/v1/pods?" + query)
        requestinfo.timeout_parameter(b"/api/v1/pods?" + query + b"xtimeout=1")
    assert taken.seconds < 0.25  # some 30 ms; what it was before grew to 10 times as much


def test_a_parameter_in_disguise_is_still_found() -> None:
    assert requestinfo.parse(b"GET", b"/api/v1/pods?a=b&w%61tch=1").verb == "watch"
    assert requestinfo.parse(b"GET", b"/api/v1/pods?watch=1;x").verb == "list"


@pytest.mark.parametrize("zone", [b"eth0", b"x\nImpersonate-User:admin", b"x\rA:b"])
def test_a_proxy_header_has_no_zone_that_could_carry_a_line_end(zone: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        parse_proxy(b"PROXY TCP6 fe80::1%" + zone + b" ::1 1 2\r\n")


def test_a_final_dot_does_not_hide_which_server_host_names() -> None:
    assert host_name(b"b.test.:443") == "b.test"


def test_a_secret_that_is_cut_off_is_masked_all_the_same() -> None:
    assert mask_query(("/x?token=" + "s" * 10000)[:4096]) == "/x?token=***"


class TestUnreadAnswers:
    REQUEST = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"

    def test_who_does_not_read_the_answers_gets_no_more(self) -> None:
        harness = ServerHarness()
        harness.connection.pauseProducing()  # what the transport does when its buffer is full
        harness.sends(self.REQUEST * 100)
        assert harness.requests == []

    def test_reading_stops_when_enough_is_held(self) -> None:
        harness = ServerHarness(head_bytes=1000)
        harness.connection.pauseProducing()
        harness.sends(self.REQUEST * 100)
        assert not harness.wire.reading

    def test_it_goes_on_when_they_are_read(self) -> None:
        harness = ServerHarness(head_bytes=1000)
        harness.connection.pauseProducing()
        harness.sends(self.REQUEST * 100)
        harness.connection.resumeProducing()
        for _ in range(100):
            harness.last.answer()
        assert len(harness.requests) == 100
        assert harness.wire.reading


def test_tiny_chunks_come_as_one_piece() -> None:
    harness = ServerHarness()
    pieces: list[bytes] = []
    harness.sends(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    harness.last.body_data = pieces.append  # type: ignore[method-assign,assignment]
    harness.sends(b"1\r\na\r\n" * 1000)
    assert pieces == [b"a" * 1000]


def test_a_request_whose_head_had_begun_before_a_drain_is_answered() -> None:
    harness = ServerHarness()
    harness.sends(b"GET / HTTP/1.1\r\n")
    harness.factory.drain()
    harness.sends(HOST + b"\r\n")
    harness.last.answer()
    assert b"Connection: close\r\n" in harness.gets()


class TestHalfOpenTunnel:
    def tunnel(self) -> ServerHarness:
        harness = ServerHarness(idle_timeout=60)
        harness.sends(b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        harness.last.exchange.switch_protocols(b"", b"", b"websocket")
        return harness

    def test_a_client_that_closed_does_not_hold_an_idle_tunnel_for_ever(self) -> None:
        harness = self.tunnel()
        harness.connection.readConnectionLost()
        harness.passes(59)
        assert not harness.wire.aborted
        harness.passes(2)
        assert harness.wire.aborted

    def test_a_tunnel_that_is_open_both_ways_may_be_idle(self) -> None:
        harness = self.tunnel()
        harness.passes(10000)
        assert not harness.wire.aborted
