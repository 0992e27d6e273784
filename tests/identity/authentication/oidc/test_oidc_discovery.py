"""An issuer's keys over real TLS: by the URL in the file or by discovery, and what is not believed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.key_source import fetch_keys
from mcproxy.identity.authentication.oidc.oidc_authenticator import OIDCAuthenticator
from mcproxy.identity.authentication.token_authenticator import Accepted, Refused, Unavailable
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.net.wall_time import wall_seconds
from mcproxy.requests.coroutines import known, settled
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.identity.conftest import Logged
from tests.identity.issuer import claims, ec_jwk, ec_key, jwks, rsa_jwk, token
from tests.upstream.fakes import real_pools
from tests.upstream.https_server import HTTPSServer


class Shifted:
    """The reactor with its clock put forward by `shift` seconds."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self.shift = 0.0

    def seconds(self) -> float:
        return float(self._reactor.seconds()) + self.shift

    def wall_seconds(self) -> float:
        return float(self._reactor.wall_seconds()) + self.shift

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


class Site:
    """An issuer that serves `documents` by path, and 404 for others."""

    def __init__(self, reactor: Any) -> None:
        self.server = HTTPSServer(reactor, trustme.CA(), "127.0.0.1", respond=self._respond)
        self.issuer = f"https://127.0.0.1:{self.server.start()}/realm"
        self.clock = Shifted(reactor)
        self.shared = UpstreamContext.of(self.clock, real_pools(self.clock))
        self.status = 200
        self.documents: dict[str, bytes] = {"/keys": jwks(rsa_jwk())}
        self.discover()

    def discover(self, **changed: Any) -> None:
        document = {"issuer": self.issuer, "jwks_uri": self.issuer.replace("/realm", "/keys"), **changed}
        self.documents["/realm/.well-known/openid-configuration"] = json.dumps(document).encode()

    def config(self, **more: Any) -> model.OIDC:
        ca = model.PEMFile("ca.crt", self.server.ca.cert_pem.bytes())
        return model.OIDC(**{"issuer": self.issuer, "audiences": ("k8s",), "ca": ca, **more})

    @property
    def asked(self) -> list[str]:
        return [seen.uri for seen in self.server.seen]

    def token(self, **more: Any) -> bytes:
        now = wall_seconds(self.shared.reactor)
        return token(claims(iss=self.issuer, exp=now + 300, iat=now), **more)

    def _respond(self, request: Any) -> bytes:
        document = self.documents.get(request.uri.decode())
        request.setResponseCode(404 if document is None else self.status)
        return document or b"not here"


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.server.stop()


async def trouble(site: Site, **more: Any) -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        await fetch_keys(site.config(**more), site.shared)
    return caught.value


async def test_keys_by_discovery(site: Site) -> None:
    assert len(await fetch_keys(site.config(), site.shared)) == 1
    assert site.asked == ["/realm/.well-known/openid-configuration", "/keys"]
    assert "authorization" not in site.server.seen[0].headers


async def test_keys_by_their_url_without_discovery(site: Site) -> None:
    url = site.issuer.replace("/realm", "/keys")
    assert len(await fetch_keys(site.config(jwks_url=url), site.shared)) == 1
    assert site.asked == ["/keys"]


async def test_an_issuer_with_a_slash_at_its_end_is_asked_without_a_double_one(site: Site) -> None:
    site.discover(issuer=site.issuer + "/")
    await fetch_keys(site.config(issuer=site.issuer + "/"), site.shared)
    assert site.asked[0] == "/realm/.well-known/openid-configuration"


@pytest.mark.parametrize("changed", [{"issuer": "https://127.0.0.1/realm"}, {"issuer": None}, {"issuer": ["x"]}])
async def test_a_discovery_document_of_another_issuer_is_not_believed(site: Site, changed: Any) -> None:
    site.discover(**changed)
    assert "of another issuer" in (await trouble(site)).cause
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/keys", "file:///etc/shadow", "/keys", "", None, 7, "https://u:p@127.0.0.1/keys"]
)
async def test_keys_are_fetched_over_https_only(site: Site, url: Any) -> None:
    site.discover(jwks_uri=url)
    assert (await trouble(site)).kind == "document"
    assert len(site.asked) == 1


@pytest.mark.parametrize("document", [b"", b"<html>", b"[]", b'{"keys": []}', b'{"keys":[{"kty":"oct","k":"AA"}]}'])
async def test_a_document_without_keys_is_trouble(site: Site, document: bytes) -> None:
    site.documents["/keys"] = document
    assert (await trouble(site)).kind == "document"


async def test_a_document_that_is_too_large_is_trouble(site: Site) -> None:
    site.documents["/keys"] = jwks(rsa_jwk()) + b" " * (1024 * 1024)
    assert "more than" in (await trouble(site)).cause


@pytest.mark.parametrize("status", [301, 302, 307, 403, 500, 204])
async def test_any_status_but_200_is_trouble_and_no_redirect_is_followed(site: Site, status: int) -> None:
    site.status = status
    found = await trouble(site)
    assert str(status) in found.cause
    assert ("redirects" in found.cause) == (300 <= status < 400)
    assert len(site.asked) == 1


async def test_a_certificate_of_another_authority_is_trouble(site: Site) -> None:
    other = model.PEMFile("other", trustme.CA().cert_pem.bytes())
    for ca in (other, None):
        assert (await trouble(site, ca=ca)).kind == "connection"
    assert site.asked == []


async def test_refused_connection_is_unavailable(site: Site) -> None:
    await site.server.stop()
    assert "refused the connection" in (await trouble(site)).cause


async def test_the_authenticator_fetches_keys_and_follows_their_rotation(site: Site, logged: Logged) -> None:
    authenticator = OIDCAuthenticator((site.config(),), site.shared)
    assert known(authenticator.authenticate(site.token())) is None
    assert isinstance(await settled(authenticator.authenticate(site.token())), Accepted)
    assert isinstance(known(authenticator.authenticate(site.token())), Accepted)
    assert len(site.asked) == 2
    site.documents["/keys"] = jwks(ec_jwk(name="new"))
    new = site.token(alg="ES256", kid="new", key=ec_key("P-256", "new"))
    assert known(authenticator.authenticate(new)) is None
    assert isinstance(await settled(authenticator.authenticate(new)), Refused)  # the keys were fetched a moment ago
    assert len(site.asked) == 2
    site.clock.shift += 10
    assert isinstance(await settled(authenticator.authenticate(new)), Accepted)
    assert len(site.asked) == 4
    assert isinstance(await settled(authenticator.authenticate(site.token())), Refused)  # its key is gone
    assert logged == []


async def test_an_issuer_that_is_down_makes_the_authenticator_unavailable(site: Site, logged: Logged) -> None:
    await site.server.stop()
    authenticator = OIDCAuthenticator((site.config(),), site.shared)
    for _ in range(3):
        assert isinstance(await settled(authenticator.authenticate(site.token())), Unavailable)
    assert len(logged.texts("warn")) == 1
