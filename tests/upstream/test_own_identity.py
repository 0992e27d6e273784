"""Whom the proxy's own requests name where the front proxy's certificate is all that it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.upstream.own_identity import GROUP, USER, own_fields
from tests.upstream.fakes import cluster_config, endpoint_config
from tests.upstream.test_cluster import FRONT, Bench
from tests.upstream.test_control import Site, ask, served


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    yield from served(reactor, "127.0.0.1")


def front_proxy(site: Site) -> model.FrontProxy:
    pair = site.client_pair("front")
    assert pair.certificate is not None
    assert pair.key is not None
    return model.FrontProxy(pair.certificate, pair.key)


async def test_requests_and_health_checks_show_the_front_proxy_and_name_the_proxy(site: Site) -> None:
    fields: dict[str, Any] = {"identity": model.UpstreamIdentity.REQUEST_HEADER, "front_proxy": front_proxy(site)}
    cluster = site.cluster(**fields)
    assert (await ask(cluster)).status == 200
    cluster.start()
    while len(site.server.seen) < 2:
        await deferLater(site.reactor, 0.01)
    for seen in site.server.seen:
        assert seen.client == "front"
        assert (seen.headers["x-remote-user"], seen.headers["x-remote-group"]) == (USER, GROUP)
        assert "authorization" not in seen.headers
    assert [seen.uri for seen in site.server.seen] == ["/version", "/readyz"]


async def test_credentials_come_before(site: Site) -> None:
    fields: dict[str, Any] = {"identity": model.UpstreamIdentity.REQUEST_HEADER, "front_proxy": front_proxy(site)}
    await ask(site.cluster(credentials=site.client_pair("proxy"), **fields))
    await ask(site.cluster(credentials=model.Credentials(token=model.Secret("s3cret")), **fields))
    own, token = site.server.seen
    assert (own.client, token.client) == ("proxy", None)
    for seen in (own, token):
        assert "x-remote-user" not in seen.headers
        assert "x-remote-group" not in seen.headers


@pytest.mark.parametrize(
    "identity", [each for each in model.UpstreamIdentity if each is not model.UpstreamIdentity.REQUEST_HEADER]
)
def test_other_identities_name_nobody(identity: model.UpstreamIdentity) -> None:
    assert own_fields(cluster_config(identity=identity, front_proxy=FRONT)) == ()


def test_without_tls_nobody_is_named() -> None:
    fields: dict[str, Any] = {"identity": model.UpstreamIdentity.REQUEST_HEADER, "front_proxy": FRONT}
    for scheme, named in (("http", False), ("https", True)):
        bench = Bench(endpoint_config(scheme=scheme), **fields)
        assert bool(bench.old.endpoints[0].own_fields) is named


def test_credentials_that_are_added_make_new_connections() -> None:
    bench = Bench(identity=model.UpstreamIdentity.REQUEST_HEADER, front_proxy=FRONT)
    new = bench.reload(credentials=model.Credentials(token=model.Secret("t")))
    assert not set(new.endpoints) & set(bench.old.endpoints)
    assert new.endpoints[0].own_fields == ()
    assert replace(new.config, credentials=model.Credentials()) == bench.old.config
