"""Requests through a whole proxy: answers of our own, heads, redirects, affinity, retries, and the access log."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.config.model import Affinity, IngressTLS
from mcproxy.daemon.listeners import _is_harmless
from mcproxy.proxy.admin.request_list import table
from tests.proxy.harness import Upstream, UpstreamEnd, certificate, listener
from tests.services.ingress.config import backend, ingress, path, rule
from tests.services.ingress.whole import HOST, LISTENER, Whole, ingress_config, says, tls_listener

WEB = ingress("web", rule(HOST, path("/", "web")))


async def serve(whole: Whole, *ingresses: model.Ingress, **more: Any) -> Upstream:
    """Serve an ingress with one pod of the service `web`."""
    await whole.serve(ingress_config(*(ingresses or (WEB,)), **more))
    pod = whole.pod("web")
    whole.endpoints("web", pod)
    return pod


def head_of(body: bytes) -> list[str]:
    return body.decode().split("\r\n")


class TestAnswers:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_what_no_rule_matches_is_404_in_plain_text(self, whole: Whole) -> None:
        await serve(whole)
        status, fields, body = await whole.get(host="other.example.com")
        assert (status, fields["content-type"], body) == (
            404,
            "text/plain; charset=utf-8",
            b"404 Not Found: no rule for this host and path\n",
        )
        assert whole.records[-1].reason == "no_rule"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_service_without_endpoints_is_503(self, whole: Whole) -> None:
        await serve(whole)
        whole.endpoints("web")
        status, fields, body = await whole.get()
        assert (status, fields["retry-after"]) == (503, "5")
        assert body == b"503 Service Unavailable: the service has no endpoint that takes requests\n"
        assert whole.records[-1].reason == "no_endpoint"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_service_that_no_cluster_has_is_500(self, whole: Whole) -> None:
        await serve(whole, ingress("web", rule(HOST, path("/", backend("web", clusters=("east", "west"))))))
        whole.endpoints("web", missing=True)
        assert (await whole.get())[0] == 503  # west was not asked yet
        whole.endpoints("web", cluster="west", missing=True)
        status, fields, body = await whole.get()
        assert (status, body) == (500, b"500 Internal Server Error: no cluster has the service\n")
        assert "retry-after" not in fields
        whole.endpoints("web", cluster="west")
        assert (await whole.get())[0] == 503

    @pytest.mark.parametrize(
        ("kind", "status", "code"),
        [
            ("application/grpc", 200, "14"),
            ("application/grpc+proto", 200, "14"),
            ("application/grpc-web", 503, None),
            ("application/json", 503, None),
        ],
    )
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_grpc_call_without_an_endpoint_gets_a_grpc_status(
        self, whole: Whole, kind: str, status: int, code: str | None
    ) -> None:
        await serve(whole)
        whole.endpoints("web")
        found, fields, body = await whole.get("/s/m", f"Content-Type: {kind}", "Content-Length: 0", method="POST")
        assert (found, fields.get("grpc-status")) == (status, code)
        if code:
            assert (fields["content-type"], body) == ("application/grpc", b"")
            assert fields["grpc-message"] == "the service has no endpoint that takes requests"
        found, fields, _ = await whole.get("/s/m", f"Content-Type: {kind}", host="nobody", method="POST")
        assert fields.get("grpc-status") == (code and "12")  # UNIMPLEMENTED

    @pytest.mark.parametrize(
        ("target", "fields", "status"),
        [
            ("/a/..%2fb", (), 400),
            ("/%zz", (), 400),
            ("/", ("X: " + "x" * 70_000,), 431),
            ("/" + "x" * 40_000, (), 414),
            ("/", ("Content-Length: 5", "Content-Length: 6"), 400),
            ("http://evil.example.com/", (), 400),
            ("/", ("Connection: authorization",), 400),
            ("/", ("Host: other",), 400),
        ],
    )
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_what_is_not_well_formed_is_refused_in_plain_text(
        self, whole: Whole, target: str, fields: tuple[str, ...], status: int
    ) -> None:
        pod = await serve(whole)
        found, answered, body = await whole.get(target, *fields)
        assert (found, answered["content-type"]) == (status, "text/plain; charset=utf-8")
        assert body.startswith(b"%d " % status)
        assert b"kind" not in body
        assert not pod.connections

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_body_over_the_limit_is_413(self, whole: Whole) -> None:
        limits = model.Limits(body_bytes=10)
        await serve(whole, listeners=(listener(LISTENER, tls=False, serves=model.Serves.INGRESS, limits=limits),))
        status, fields, _ = await whole.get("/", "Content-Length: 11", method="POST")
        assert (status, fields["content-type"]) == (413, "text/plain; charset=utf-8")

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_the_target_of_a_proxy_request_goes_by_its_own_authority(self, whole: Whole) -> None:
        await serve(whole)
        assert await whole.who(f"http://{HOST}/x") == "web"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_request_of_http_1_0_without_a_host(self, whole: Whole) -> None:
        await serve(whole, ingress("web", rule("", path("/", "web"))))
        client = await whole.asks(b"GET / HTTP/1.0\r\n\r\n", tls=False)
        status, _, body = await whole.answer(client)
        assert status == 200
        assert "Host: web.demo" in head_of(body)


class TestTLS:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_host_that_the_certificate_does_not_cover_is_misdirected(self, whole: Whole) -> None:
        rules = [rule(host, path("/", "web")) for host in (HOST, "a.wild.example.com", "other.example.com")]
        await serve(whole, ingress("web", *rules), listeners=(tls_listener(),))
        how: dict[str, Any] = {"tls": True, "server_name": HOST}
        assert await whole.who(**how) == "web"
        assert await whole.who(host="a.wild.example.com", **how) == "web"
        status, fields, _ = await whole.get(host="other.example.com", **how)
        assert (status, fields["content-type"]) == (421, "text/plain; charset=utf-8")
        assert whole.records[-1].reason == "misdirected"
        assert await whole.who(host="nobody.example.org", **how) == "404"  # a certificate of none: unknown
        assert await whole.who(host="b.wild.example.com", **how) == "404"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_host_that_another_certificate_covers_is_misdirected_without_a_rule_too(self, whole: Whole) -> None:
        other = "second.example.org"
        await serve(
            whole,
            ingress("web", rule(HOST, path("/", "web")), default="web"),
            listeners=(tls_listener(hosts=((other, other),)),),
            certificates=(certificate(HOST), certificate(other)),
        )
        assert await whole.who(host=other, tls=True, server_name=HOST) == "421"
        assert await whole.who(host=other, tls=True, server_name=other) == "web"
        assert await whole.who(host=HOST, tls=True, server_name=other) == "421"
        assert await whole.who(host="unknown.example.org", tls=True, server_name=HOST) == "web"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_plain_requests_are_redirected(self, whole: Whole) -> None:
        secured = replace(WEB, tls=(IngressTLS(hosts=(), certificate=HOST),), listeners=("web", "tls"))
        listeners = (listener(LISTENER, tls=False, serves=model.Serves.INGRESS), tls_listener("tls"))
        await serve(whole, secured, listeners=listeners)
        status, fields, _ = await whole.get("/./b?c=d")
        assert (status, fields["location"]) == (308, f"https://{HOST}/b?c=d")
        assert whole.records[-1].reason == "redirected"
        assert await whole.who(tls=True, server_name=HOST, index=1) == "web"
        await whole.serve(ingress_config(replace(secured, redirect_port=8443), listeners=listeners))
        assert (await whole.get(host=f"{HOST}:8080"))[1]["location"] == f"https://{HOST}:8443/"
        await whole.serve(ingress_config(replace(secured, redirect_to_tls=False), listeners=listeners))
        assert await whole.who() == "web"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_what_came_to_a_trusted_proxy_over_tls_is_not_redirected(self, whole: Whole) -> None:
        secured = replace(WEB, tls=(IngressTLS(hosts=(HOST,), certificate=HOST),), listeners=("web", "tls"))
        trusting = (ip_network("127.0.0.0/8"),)
        plain = listener(LISTENER, tls=False, serves=model.Serves.INGRESS, trusted_proxies=trusting)
        await serve(whole, secured, listeners=(plain, tls_listener("tls")))
        assert await whole.who("/", "X-Forwarded-Proto: https") == "web"
        assert await whole.who("/", "X-Forwarded-Proto: http") == "308"
        assert await whole.who("/") == "308"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_host_without_tls_is_not_redirected(self, whole: Whole) -> None:
        secured = replace(WEB, tls=(IngressTLS(hosts=("x.example.com",), certificate=HOST),), listeners=("web", "tls"))
        listeners = (listener(LISTENER, tls=False, serves=model.Serves.INGRESS), tls_listener("tls"))
        await serve(whole, secured, listeners=listeners)
        assert await whole.who() == "web"


class TestHeads:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_the_request_as_the_pod_sees_it(self, whole: Whole) -> None:
        await serve(whole)
        _, _, body = await whole.get(
            "/a%2Fb//c?x=%2e%2e", "Accept: */*", "X-Forwarded-For: 1.2.3.4", "Proxy-Connection: x", "Te: trailers"
        )
        lines = head_of(body)
        assert lines[0] == "web\nGET /a%2Fb//c?x=%2e%2e HTTP/1.1"
        assert lines[1] == f"Host: {HOST}"
        fields = dict(line.split(": ", 1) for line in lines[1:])
        assert re.fullmatch("[0-9a-f]{32}", fields.pop("X-Request-ID"))
        fields.pop("Connection", None)
        fields.pop("TE", None)
        assert fields == {
            "Host": HOST,
            "Accept": "*/*",
            "X-Forwarded-For": "127.0.0.1",
            "X-Forwarded-Proto": "http",
            "X-Forwarded-Host": HOST,
            "X-Forwarded-Port": "80",
            "X-Real-IP": "127.0.0.1",
            "Forwarded": f"for=127.0.0.1;proto=http;host={HOST}",
        }

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_client_cannot_take_the_chain_away(self, whole: Whole) -> None:
        trusting = (ip_network("127.0.0.0/8"),)
        await serve(
            whole,
            listeners=(listener(LISTENER, tls=False, serves=model.Serves.INGRESS, trusted_proxies=trusting),),
        )
        _, _, body = await whole.get("/", "X-Forwarded-For: 192.0.2.9", "Connection: X-Forwarded-For, Forwarded")
        assert "X-Forwarded-For: 192.0.2.9, 127.0.0.1" in head_of(body)

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_the_address_of_the_proxy_protocol_is_the_client_s(self, whole: Whole) -> None:
        loopback = (ip_network("127.0.0.0/8"),)
        await serve(
            whole,
            listeners=(listener(LISTENER, tls=False, serves=model.Serves.INGRESS, proxy_protocol_from=loopback),),
        )
        request = b"GET / HTTP/1.1\r\nHost: %b\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close\r\n\r\n" % HOST.encode()
        client = await whole.asks(b"PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n" + request, tls=False)
        status, _, body = await whole.answer(client)
        assert status == 200
        lines = head_of(body)
        assert "X-Forwarded-For: 203.0.113.9" in lines
        assert "X-Real-IP: 203.0.113.9" in lines
        assert whole.records[-1].client == "203.0.113.9"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_each_request_of_a_connection_has_its_own_identifier(self, whole: Whole) -> None:
        pod = await serve(whole)
        client = await whole.client(tls=False)

        def answers() -> int:
            return client.received.count(b"HTTP/1.1 200")

        for number in (1, 2, 3):
            client.send(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST.encode())
            await whole.until(lambda: answers() >= number)  # noqa: B023
        found = re.findall(rb"X-Request-ID: ([^\r]*)", pod.received)
        assert len(set(found)) == 3
        assert [record.request_id.encode() for record in whole.records] == found

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_client_s_own_identifier_is_kept_if_it_is_one(self, whole: Whole) -> None:
        await serve(whole)
        assert "x-request-id: abc" in head_of((await whole.get("/", "x-request-id: abc"))[2])
        assert whole.records[-1].request_id == "abc"
        body = (await whole.get("/", "x-request-id: a b"))[2]
        assert b"a b" not in body
        assert body.count(b"X-Request-ID") == 1

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_hosts_of_one_connection_go_to_their_own_rules(self, whole: Whole) -> None:
        await serve(whole, ingress("web", rule("a", path("/", "web")), rule("b", path("/x", "web"))))
        client = await whole.client(tls=False)
        client.send(b"".join(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host for host in (b"a", b"b", b"a")))
        await whole.until(lambda: client.received.count(b"HTTP/1.1 ") == 3)
        assert re.findall(rb"HTTP/1.1 (\d+)", client.received) == [b"200", b"404", b"200"]


class TestAffinity:
    def sticky(self, **more: Any) -> model.Ingress:
        return ingress("web", rule(HOST, path("/web", backend("web", affinity=Affinity.COOKIE, **more))))

    def cookie(self, fields: dict[str, str]) -> str:
        return fields["set-cookie"].partition(";")[0]

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_client_stays_with_its_pod(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.sticky()))
        pods = [whole.pod(name) for name in "abc"]
        whole.endpoints("web", *pods)
        _, fields, _ = await whole.get("/web/x")
        assert re.fullmatch(r"mcproxy-[0-9a-f]{8}=[\w-]{22}; Path=/web; HttpOnly; SameSite=Lax", fields["set-cookie"])
        own = fields["server"]
        for _ in range(4):
            _, again, _ = await whole.get("/web", f"Cookie: a=b; {self.cookie(fields)}")
            assert again["server"] == own
            assert "set-cookie" not in again
        assert len({await whole.who("/web") for _ in range(6)}) == 3  # others take turns

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_pod_that_is_gone_is_replaced_with_a_new_cookie(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.sticky()))
        pods = {name: whole.pod(name) for name in "ab"}
        whole.endpoints("web", *pods.values())
        _, fields, _ = await whole.get("/web")
        cookie = self.cookie(fields)
        other = next(name for name in pods if name != fields["server"])
        whole.endpoints("web", pods[other], terminating=(pods[fields["server"]],))
        _, moved, _ = await whole.get("/web", f"Cookie: {cookie}")
        assert moved["server"] == other
        assert self.cookie(moved) != cookie
        _, stays, _ = await whole.get("/web", f"Cookie: {self.cookie(moved)}")
        assert "set-cookie" not in stays

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_made_up_cookie_chooses_nothing(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.sticky()))
        whole.endpoints("web", whole.pod("a"))
        secret = whole.pod("secret")
        name = self.cookie((await whole.get("/web"))[1]).partition("=")[0]
        for value in (f"127.0.0.1:{secret.port}", "A" * 22, "..", "%00"):
            _, fields, _ = await whole.get("/web", f"Cookie: {name}={value}")
            assert fields["server"] == "a"
            assert "set-cookie" in fields
        assert not secret.connections

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_it_is_secure_over_tls_and_lasts_over_a_reload_with_another_certificate(self, whole: Whole) -> None:
        configuration = ingress_config(self.sticky(), listeners=(tls_listener(),))
        await whole.serve(configuration)
        whole.endpoints("web", *(whole.pod(name) for name in "abc"))
        how: dict[str, Any] = {"tls": True, "server_name": HOST}
        _, fields, _ = await whole.get("/web", **how)
        assert fields["set-cookie"].endswith("; Secure")
        other = replace(certificate(HOST, "more.example.com"), name=HOST)
        await whole.serve(replace(configuration, certificates=(other,)))
        _, again, _ = await whole.get("/web", f"Cookie: {self.cookie(fields)}", **how)
        assert again["server"] == fields["server"]
        assert "set-cookie" not in again


class TestFailures:
    def retrying(self, **more: Any) -> model.Ingress:
        return ingress("web", rule(HOST, path("/", backend("web", **more))))

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_pod_that_cannot_be_reached_costs_no_request(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.retrying()))
        gone = whole.pod("gone")
        port = gone.port
        await gone.stop()
        whole.endpoints("web", port, whole.pod("a"))
        assert [await whole.who(method=method) for method in ("GET", "GET", "DELETE", "GET") * 2] == ["a"] * 8
        assert sorted(record.attempts for record in whole.records) == [1] * 5 + [2] * 3  # out after three failures

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_request_that_was_sent_is_repeated_only_if_it_is_idempotent(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.retrying()))
        broken, good = whole.pod("broken"), whole.pod("good")
        broken.reply = UpstreamEnd.abort
        whole.endpoints("web", broken, good)
        found = [await whole.who("/", "Content-Length: 0", method="POST") for _ in range(2)]
        assert sorted(found) == ["502", "good"]
        assert whole.records[found.index("502")].reason == "upstream_closed"
        assert {await whole.who() for _ in range(2)} == {"good"}

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_no_retries(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.retrying(retries=0)))
        broken, good = whole.pod("broken"), whole.pod("good")
        broken.reply = UpstreamEnd.abort
        whole.endpoints("web", broken, good)
        assert sorted([await whole.who() for _ in range(2)]) == ["502", "good"]

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_service_that_is_down_gets_a_fifth_more_and_not_twice_the_load(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.retrying()))
        pods = [whole.pod(name) for name in "ab"]
        for pod in pods:
            pod.reply = UpstreamEnd.abort
        whole.endpoints("web", *pods)
        for _ in range(60):
            assert await whole.who() == "502"
        attempts = sum(record.attempts for record in whole.records)
        assert 60 + 10 <= attempts <= 60 + 10 + 60 * 0.2 + 1

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_pod_that_does_not_answer_in_time(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.retrying(response_timeout=0.3, retries=0)))
        silent = whole.pod("silent")
        silent.reply = None
        whole.endpoints("web", silent)
        status, _, body = await whole.get()
        assert (status, body) == (504, b"504 Gateway Timeout: the service did not answer in time\n")
        assert whole.records[-1].reason == "upstream_timeout"

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_status_of_the_pod_is_its_own_answer(self, whole: Whole) -> None:
        """503 of a pod neither is repeated nor puts the pod out."""
        pod = await serve(whole)
        pod.reply = lambda end: end.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nX: y\r\n\r\nno")
        for _ in range(5):
            status, fields, body = await whole.get()
            assert (status, fields["x"], body) == (503, "y", b"no")
        assert {record.attempts for record in whole.records} == {1}
        assert {record.reason for record in whole.records} == {"ok"}

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_status_that_retry_on_names_is_a_failure_of_the_pod(self, whole: Whole) -> None:
        await whole.serve(ingress_config(self.retrying(retry_on=(503,))))
        busy, good = whole.pod("busy"), whole.pod("good")
        busy.reply = lambda end: end.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno")
        whole.endpoints("web", busy, good)
        assert {await whole.who() for _ in range(8)} == {"good"}
        assert sorted(record.attempts for record in whole.records) == [1] * 5 + [2] * 3

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_client_keeps_its_pod_by_what_it_is_known_by(self, whole: Whole) -> None:
        by = model.HashBy(header="X-User")
        await whole.serve(ingress_config(self.retrying(strategy=model.Strategy.CONSISTENT_HASH, hash_by=by)))
        whole.endpoints("web", *(whole.pod(name) for name in "abc"))
        found = {user: {await whole.who("/", f"X-User: {user}") for _ in range(3)} for user in range(12)}
        assert {len(names) for names in found.values()} == {1}
        assert len({name for names in found.values() for name in names}) > 1


class TestRecords:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_the_access_log_has_the_rule_and_the_pod(self, whole: Whole) -> None:
        pod = await serve(whole, ingress("web", rule(HOST, path("/web", "web")), default="other"))
        await whole.get("/web/x?y=z", "User-Agent: test")
        record = whole.records[-1]
        assert (record.ingress, record.rule, record.service, record.host) == ("web", f"{HOST}/web", "demo/web", HOST)
        assert (record.cluster, record.endpoint) == ("east", f"127.0.0.1:{pod.port}")
        assert (record.uri, record.status, record.upstream_status, record.reason) == ("/web/x?y=z", 200, 200, "ok")
        assert (record.user_agent, record.attempts, record.client) == ("test", 1, "127.0.0.1")
        assert record.upstream is not None
        assert 0.0 <= record.upstream <= record.total
        assert record.bytes_out > 0
        await whole.get("/")
        assert (whole.records[-1].rule, whole.records[-1].cluster) == ("default", "")

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_metrics_are_by_rule(self, whole: Whole) -> None:
        await serve(whole)
        await whole.get()
        await whole.get(host="other")
        metrics = whole.service.metrics
        metrics.flush()
        series = metrics.counts._series
        assert series["mcproxy_ingress_requests_total"] == {
            ("web", f"{HOST}/", "demo/web", "east", "200"): [1],
            ("", "", "", "", "404"): [1],
        }
        assert series["mcproxy_ingress_request_outcomes_total"] == {("web", "ok"): [1], ("", "no_rule"): [1]}
        assert sum(series["mcproxy_ingress_upstream_duration_seconds"]["demo/web", "east"][:-1]) == 1


class TestReload:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_connections_to_pods_and_turns_go_on(self, whole: Whole) -> None:
        configuration = ingress_config(WEB)
        await whole.serve(configuration)
        pods = [whole.pod(name) for name in "abc"]
        whole.endpoints("web", *pods)
        first = [await whole.who() for _ in range(4)]
        more = ingress("more", rule("more.example.com", path("/", "web")))
        await whole.serve(replace(configuration, ingresses=(WEB, more)))
        assert [await whole.who() for _ in range(3)] == first[1:4]
        assert [len(pod.connections) for pod in pods] == [1, 1, 1]

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_other_weights_keep_connections_and_health(self, whole: Whole) -> None:
        def weighted(**weights: int) -> model.Config:
            both = backend("web", clusters=("east", "west"), weights=tuple(weights.items()))
            return ingress_config(ingress("web", rule(HOST, path("/", both))))

        await whole.serve(weighted(east=1, west=1))
        east, west = whole.pod("east"), whole.pod("west")
        whole.endpoints("web", east)
        whole.endpoints("web", west, cluster="west")
        assert {await whole.who() for _ in range(2)} == {"east", "west"}
        await whole.serve(weighted(east=3, west=1))
        found = [await whole.who() for _ in range(8)]
        assert (found.count("east"), found.count("west")) == (6, 2)
        assert (len(east.connections), len(west.connections)) == (1, 1)
        await whole.serve(weighted(east=0, west=1))
        assert {await whole.who() for _ in range(3)} == {"west"}

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_request_goes_on_when_its_pod_ends(self, whole: Whole) -> None:
        pod = await serve(whole)
        pod.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        client = await whole.asks(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST.encode(), tls=False)
        await whole.until(lambda: client.received.endswith(b"hello"))
        other = whole.pod("other")
        whole.endpoints("web", other)
        assert await whole.who() == "other"
        pod.connections[0].send(b"world")
        await whole.until(lambda: client.received.endswith(b"helloworld"))

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_rule_that_is_removed_ends_and_the_next_request_is_404(self, whole: Whole) -> None:
        configuration = ingress_config(WEB, ingress("more", rule("more.example.com", path("/", "web"))))
        await whole.serve(configuration)
        whole.endpoints("web", whole.pod("web"))
        client = await whole.client(tls=False)
        client.send(b"GET / HTTP/1.1\r\nHost: more.example.com\r\n\r\n")
        await whole.until(lambda: b"HTTP/1.1 200" in client.received)
        await whole.serve(ingress_config(WEB))
        client.received = b""
        client.send(b"GET / HTTP/1.1\r\nHost: more.example.com\r\n\r\n")
        await whole.until(lambda: b"HTTP/1.1 404" in client.received)

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_requests_to_a_service_that_is_removed_have_the_drain_timeout(self, whole: Whole) -> None:
        daemon = model.DaemonConfig(drain_timeout=0.2)
        pod = await serve(whole, daemon=daemon)
        pod.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        client = await whole.asks(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST.encode(), tls=False)
        await whole.until(lambda: client.received.endswith(b"hello"))
        await whole.serve(ingress_config(ingress("other", default="other"), daemon=daemon))
        await whole.until(lambda: client.over)
        assert whole.records[-1].reason == "drained"


class TestUpgrades:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_tunnel_and_what_a_drain_does_with_it(self, whole: Whole) -> None:
        pod = await serve(whole)
        pod.reply = lambda end: end.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        )
        request = b"GET /ws HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" % HOST.encode()
        client = await whole.asks(request, tls=False)
        await whole.until(lambda: b" 101 " in client.received)
        pod.reply = says("web")
        draining = whole.service.drain(0.3)
        waiting = Deferred.fromCoroutine(draining)
        refused = await whole.asks(request, tls=False)
        await whole.until(lambda: b" 503 " in refused.received)
        assert await whole.who() == "web"  # all else is served
        await waiting
        await whole.until(lambda: client.over)
        assert whole.service.cut == {"tunnels": 1}


class TestFigures:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_requests_in_flight_are_shown_without_their_path(self, whole: Whole) -> None:
        pod = await serve(whole)
        pod.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        client = await whole.asks(b"GET /reset/s3cret HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST.encode(), tls=False)
        await whole.until(lambda: client.received.endswith(b"hello"))
        assert whole.service.running == 1
        (request,) = whole.service.described_requests("worker-0")["requests"]
        assert (
            request.items()
            >= {
                "state": "responding",
                "ingress": "web",
                "rule": f"{HOST}/",
                "service": "demo/web",
                "endpoint": f"127.0.0.1:{pod.port}",
                "status": 200,
            }.items()
        )
        text = table(await whole.service.collect_requests())
        assert f"{HOST}/" in text
        assert "s3cret" not in text + str(request)

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_endpoints_that_are_out_are_shown(self, whole: Whole) -> None:
        await whole.serve(ingress_config(WEB))
        gone = whole.pod("gone")
        port = gone.port
        await gone.stop()
        whole.endpoints("web", port, whole.pod("a"))
        for _ in range(6):
            assert await whole.who() == "a"
        (service,) = whole.service.figures["ingressServices"]
        assert (service["service"], service["port"], service["cluster"]) == ("demo/web", "8080", "east")
        assert (service["ready"], service["known"]) == (2, True)
        (out,) = service["outEndpoints"]
        assert out == {"endpoint": f"127.0.0.1:{port}", "cause": "it could not be connected to"}


class TestShutdown:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_what_lasts_is_waited_for_as_a_tunnel_is(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mcproxy.services.ingress.ingress_request.LASTING", 0.05)
        pod = await serve(whole)
        pod.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        client = await whole.asks(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST.encode(), tls=False)
        await whole.until(lambda: client.received.endswith(b"hello"))
        await whole.turns(40)
        drained: list[bool] = []
        waiting = Deferred.fromCoroutine(whole.service.drain(30.0))
        waiting.addCallback(lambda _: drained.append(True))
        await whole.turns(60)
        assert not drained
        pod.connections[0].send(b"world")
        await waiting
        await whole.until(lambda: client.received.endswith(b"helloworld"))
        assert not whole.service.cut

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_what_lasts_longer_is_broken_off_and_never_ended_cleanly(
        self, whole: Whole, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mcproxy.services.ingress.ingress_request.LASTING", 0.05)
        pod = await serve(whole)
        pod.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        client = await whole.asks(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST.encode(), tls=False)
        await whole.until(lambda: b"hello" in client.received)
        await whole.turns(40)
        await Deferred.fromCoroutine(whole.service.drain(0.2))
        await whole.until(lambda: client.over)
        assert not client.received.endswith(b"0\r\n\r\n")
        assert whole.service.cut == {"streams": 1}
        assert whole.records[-1].reason == "drained"


def test_a_plain_ingress_may_be_on_a_socket_of_systemd_that_others_can_reach() -> None:
    plain = listener(LISTENER, tls=False, serves=model.Serves.INGRESS)
    assert _is_harmless(plain)
    assert not _is_harmless(replace(plain, serves=model.Serves.API))


class TestRollingUpdate:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_no_request_fails_while_pods_are_replaced(self, whole: Whole) -> None:
        """Each pod is ready, then ending, then gone with its connections; GET and POST over kept connections."""
        await whole.serve(ingress_config(WEB))
        clients = [await whole.client(tls=False) for _ in range(4)]
        pods = [whole.pod("pod-0"), whole.pod("pod-1")]
        whole.endpoints("web", *pods)
        sent = 0

        async def ask(method: bytes) -> None:
            nonlocal sent
            for client in clients:
                length = b"Content-Length: 0\r\n" if method == b"POST" else b""
                client.send(b"%b / HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (method, HOST.encode(), length))
            sent += 1
            await whole.until(lambda: all(client.received.count(b"HTTP/1.1 ") >= sent for client in clients))

        for number in range(2, 12):
            old, *rest = pods
            new = whole.pod(f"pod-{number}")
            whole.endpoints("web", *rest, new, terminating=(old,))
            await ask(b"POST")
            await ask(b"GET")
            await old.stop()
            await ask(b"POST")
            whole.endpoints("web", *rest, new)
            await ask(b"GET")
            pods = [*rest, new]
        for client in clients:
            assert set(re.findall(rb"HTTP/1.1 (\d+)", client.received)) == {b"200"}
        assert {record.attempts for record in whole.records} == {1}
