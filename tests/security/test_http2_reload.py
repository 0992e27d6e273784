"""A connection over HTTP/2 lives for days: each of its requests is judged by the configuration of its own moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from mcproxy.config import model
from tests.http.h2 import raw
from tests.identity.certificates import revocations
from tests.proxy.harness import NAME
from tests.security.authenticating_proxy import ALICE_TOKEN, ALL, OTHER, AuthenticatingProxy, ca, corp, holder, pem
from tests.security.http2_attacker import H2_LISTENER, Attacker, attacker

ALICE = (b"authorization", b"Bearer " + ALICE_TOKEN)
POD = b"/api/v1/namespaces/a/pods/b"
#: One and the same header block each time, of fields that the decoder, the connection and the caches know by then.
WITH_TOKEN = raw.request(ALICE, path=POD)
ANONYMOUS = raw.request(path=POD)


async def reload(proxy: AuthenticatingProxy, **changed: Any) -> None:
    await proxy.serve(proxy.configuration(listeners=(H2_LISTENER,), **changed))


async def opened(proxy: AuthenticatingProxy, **changed: Any) -> None:
    proxy.service.abort()
    await reload(proxy, **changed)


async def statuses(client: Attacker, *blocks: bytes) -> list[int]:
    return [(await client.outcome(client.ask_block(block)))[0] for block in blocks]


def crl(*revoked: Any) -> model.PEMFile:
    lists = revocations(ca("clients"), *revoked, valid=(-400, 3600))
    return model.PEMFile("clients.crl", lists.public_bytes(Encoding.DER))


GUESTS = model.Authentication(name="guests", client_ca=pem("others"))


async def test_a_token_that_was_taken_back_is_refused_on_an_open_connection(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    proxy = authenticating_proxy
    await opened(proxy)
    client = await attacker(proxy)
    assert await statuses(client, WITH_TOKEN, WITH_TOKEN, WITH_TOKEN) == [200, 200, 200]
    before = len(proxy.forwarded)
    await reload(proxy, authentication=(corp(token_file=None), GUESTS))
    assert await statuses(client, WITH_TOKEN, WITH_TOKEN) == [401, 401]
    assert len(proxy.forwarded) == before
    await reload(proxy)
    assert await statuses(client, WITH_TOKEN) == [200]
    assert client.lost is None


async def test_a_certificate_that_was_revoked_or_lost_its_authority_is_refused_on_an_open_connection(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    proxy = authenticating_proxy
    held = holder("clients", "carol")
    await opened(proxy, authentication=(corp(client_crl=crl()), GUESTS))
    client = await attacker(proxy, certificate=held)
    assert await statuses(client, ANONYMOUS, ANONYMOUS) == [200, 200]
    await reload(proxy, authentication=(corp(client_crl=crl(held)), GUESTS))
    assert await statuses(client, ANONYMOUS, WITH_TOKEN) == [401, 200]
    await reload(proxy)
    assert await statuses(client, ANONYMOUS) == [200]
    await reload(proxy, authentication=(corp(client_ca=pem("others")), GUESTS))
    assert await statuses(client, ANONYMOUS) == [401]
    assert client.lost is None


async def test_a_server_that_was_removed_is_not_reached_on_an_open_connection(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    proxy = authenticating_proxy
    await opened(proxy)
    client = await attacker(proxy, ALL)
    named = raw.request(ALICE, path=b"/clusters/own" + POD, authority=ALL.encode())
    assert await statuses(client, named, named) == [200, 200]
    runtime = proxy.configuration()
    others = tuple(server for server in runtime.servers if server.name != ALL)
    await reload(proxy, servers=tuple(_not_default(server) for server in others))
    proxy.east.forget()
    assert await statuses(client, named, named) == [404, 404]
    misdirected = raw.request(ALICE, path=POD, authority=OTHER.encode())
    assert await statuses(client, misdirected) == [401]  # its own authenticators decide, which take no tokens
    assert await statuses(await attacker(proxy, NAME), misdirected) == [421]


def _not_default(server: model.Server) -> model.Server:
    return replace(server, default=False)
