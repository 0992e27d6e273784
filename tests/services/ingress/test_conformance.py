"""The cases of Ingress conformance (host rules, path rules, default backend, load balancing), over real sockets."""

from __future__ import annotations

from collections import Counter

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config.model import Ingress, IngressTLS, PathType
from tests.services.ingress.config import ingress, path, rule
from tests.services.ingress.whole import Whole, ingress_config, tls_listener


class TestDefaultBackend:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_an_ingress_without_rules_sends_all_to_it(self, whole: Whole) -> None:
        await whole.serve(ingress_config(ingress("default-backend", default="echo")))
        whole.endpoints("echo", whole.pod("echo"))
        for method, host, target in [
            ("GET", "my-host", "/"),
            ("GET", "my-host", "/sub-path"),
            ("DELETE", "some-host", "/resource"),
        ]:
            status, fields, body = await whole.get(target, "User-Agent: Go-http-client/1.1", host=host, method=method)
            assert (status, fields["server"]) == (200, "echo")
            head = body.decode().split("\r\n")
            assert head[0] == f"echo\n{method} {target} HTTP/1.1"
            assert f"Host: {host}" in head
            assert "User-Agent: Go-http-client/1.1" in head

    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_a_hundred_requests_reach_ten_pods(self, whole: Whole) -> None:
        await whole.serve(ingress_config(ingress("load-balancing", default="echo")))
        whole.endpoints("echo", *(whole.pod(f"pod-{number}") for number in range(10)))
        found = Counter([await whole.who("/", host="load-balancing") for _ in range(100)])
        assert len(found) == 10
        assert set(found.values()) == {10}


HOSTS: Ingress = ingress(
    "host-rules",
    rule("*.foo.com", path("/", "wildcard-foo-com")),
    rule("foo.bar.com", path("/", "foo-bar-com")),
    tls=(IngressTLS(hosts=("foo.bar.com",), certificate="web.example.com"),),
)


class TestHostRules:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_hosts(self, whole: Whole) -> None:
        await whole.serve(ingress_config(HOSTS))
        for service in ("wildcard-foo-com", "foo-bar-com"):
            whole.endpoints(service, whole.pod(service))
        assert await whole.who(host="foo.bar.com") == "foo-bar-com"
        assert await whole.who(host="subdomain.bar.com") == "404"
        assert await whole.who(host="bar.foo.com") == "wildcard-foo-com"
        assert await whole.who(host="baz.bar.foo.com") == "404"
        assert await whole.who(host="foo.com") == "404"


class TestPathRules:
    @pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
    async def test_paths(self, whole: Whole) -> None:
        await whole.serve(
            ingress_config(
                ingress(
                    "path-rules",
                    rule("exact", path("/foo", "foo-exact", PathType.EXACT)),
                    rule("prefix", path("/foo", "foo"), path("/aaa/bbb", "aaa-bbb"), path("/aaa", "aaa")),
                )
            )
        )
        for service in ("foo-exact", "foo", "aaa-bbb", "aaa"):
            whole.endpoints(service, whole.pod(service))
        for host, target, service in [
            ("exact", "/foo", "foo-exact"),
            ("exact", "/foo/", "404"),
            ("exact", "/FOO", "404"),
            ("prefix", "/foo/", "foo"),
            ("prefix", "/aaa/bbb/ccc", "aaa-bbb"),
            ("prefix", "/aaa/ccc", "aaa"),
            ("prefix", "/aaaccc", "404"),
        ]:
            assert await whole.who(target, host=host) == service, (host, target)


@pytest.mark.parametrize("name", ["foo.bar.com"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_host_over_tls_with_the_certificate_of_its_ingress(whole: Whole, name: str) -> None:
    from tests.proxy.harness import certificate

    await whole.serve(
        ingress_config(
            HOSTS,
            listeners=(tls_listener(hosts=((name, name),)),),
            certificates=(certificate("web.example.com"), certificate(name)),
        )
    )
    whole.endpoints("foo-bar-com", whole.pod("foo-bar-com"))
    assert await whole.who(host=name, tls=True, server_name=name) == "foo-bar-com"
