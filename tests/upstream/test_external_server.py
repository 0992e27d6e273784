"""A server that is no cluster: who is verified, what is sent, and which URLs are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from mcproxy.config import model
from mcproxy.net.connect_errors import TLSError
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.external_server import ExternalServer, split_url
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.support.connect_proxy import ConnectProxy
from tests.upstream.fakes import real_pools
from tests.upstream.https_server import HTTPSServer

Make = Callable[..., ExternalServer]


@pytest.fixture
def server(reactor: Any, nothing_left_open: None) -> Iterator[HTTPSServer]:
    server = HTTPSServer(reactor, trustme.CA(), "127.0.0.1")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def make(reactor: Any, server: HTTPSServer) -> Iterator[Make]:
    made: list[ExternalServer] = []

    def make(ca: trustme.CA | None = server.ca, **more: Any) -> ExternalServer:
        endpoint = model.EndpointConfig(name="x", scheme="https", host="127.0.0.1", port=server.port, path="/review")
        pem = None if ca is None else model.PEMFile("ca.crt", ca.cert_pem.bytes())
        shared = UpstreamContext.of(reactor, real_pools(reactor))
        made.append(ExternalServer("of a test", endpoint, tls=model.ClusterTLS(ca=pem), context=shared, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def test_a_request_names_its_whole_path_and_carries_the_credential(make: Make, server: HTTPSServer) -> None:
    outside = make(credentials=model.Credentials(token=model.Secret("s3cret")))
    answer = await outside.request("POST", "/review?timeout=5s", body=b"{}", timeout=10, max_body=100)
    assert (answer.status, answer.body) == (200, b"{}")
    (seen,) = server.seen
    assert (seen.method, seen.uri, seen.body) == ("POST", "/review?timeout=5s", b"{}")
    assert seen.headers["authorization"] == "Bearer s3cret"


async def test_without_credentials_none_is_sent(make: Make, server: HTTPSServer) -> None:
    await make().request("GET", "/", timeout=10, max_body=100)
    assert "authorization" not in server.seen[0].headers


async def test_it_is_reached_through_the_http_proxy_of_its_kubeconfig(make: Make, server: HTTPSServer) -> None:
    with ConnectProxy(credentials=("edge", "pw")) as proxy:
        secret = model.Secret("pw")
        way = model.HTTPProxy(url=proxy.url, host="127.0.0.1", port=proxy.port, user="edge", password=secret)
        outside = make(proxy=way)
        assert (await outside.request("GET", "/", timeout=10, max_body=100)).status == 200
        assert proxy.opened == [f"127.0.0.1:{server.port}"]
        outside.close()  # the connection is one of the proxy


@pytest.mark.parametrize("ca", [trustme.CA(), None])
async def test_the_certificate_must_be_of_the_given_authority_or_the_systems(
    make: Make, server: HTTPSServer, ca: Any
) -> None:
    with pytest.raises(TLSError):
        await make(ca=ca).request("GET", "/", timeout=10, max_body=100)
    assert server.seen == []


async def test_a_redirect_is_an_answer_like_any_other(make: Make, server: HTTPSServer) -> None:
    def respond(request: Any) -> bytes:
        request.setResponseCode(302)
        request.setHeader("location", f"https://127.0.0.1:{server.port}/elsewhere")
        return b""

    server.respond = respond
    outside = make(credentials=model.Credentials(token=model.Secret("s3cret")))
    assert (await outside.request("GET", "/", timeout=10, max_body=100)).status == 302
    assert len(server.seen) == 1


async def test_an_answer_is_bounded(make: Make, server: HTTPSServer) -> None:
    server.respond = lambda request: b"x" * 101
    with pytest.raises(ControlError, match="more than 100 bytes"):
        await make().request("GET", "/", timeout=10, max_body=100)


def test_a_credential_that_can_never_be_sent_is_refused(make: Make) -> None:
    with pytest.raises(CredentialError):
        make(credentials=model.Credentials(token=model.Secret("a\nb")))


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("https://login.example.com", "login.example.com", 443, "/"),
        ("https://login.example.com/", "login.example.com", 443, "/"),
        ("https://Login.Example.com:8443/a/b?c=d&e", "login.example.com", 8443, "/a/b?c=d&e"),
        ("https://[2001:db8::1]:6443/keys#part", "2001:db8::1", 6443, "/keys"),
        ("https://10.0.0.1?x", "10.0.0.1", 443, "/?x"),
    ],
)
def test_a_url_is_a_server_and_what_to_ask_it_for(url: str, host: str, port: int, target: str) -> None:
    endpoint, asked = split_url(url)
    assert (endpoint.scheme, endpoint.host, endpoint.port, endpoint.path, asked) == ("https", host, port, "", target)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/keys",
        "http://login.example.com/keys",
        "file:///etc/passwd",
        "HTTPS:login.example.com",
        "https://",
        "https:///keys",
        "https://user:password@login.example.com/",
        "https://@login.example.com/",
        "https://login.example.com:port/",
        "https://login.example.com:99999/",
        "https://[::1/",
        "https://login.example.com/a b",
        "https://login.example.com/\r\nX: y",
        "https://login.example.com/\x7f",
        "https://bücher.example/",
        "https://login.example.com/" + "x" * 2048,
    ],
)
def test_anything_but_an_absolute_https_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(is not an?|has no valid) "):
        split_url(url)
